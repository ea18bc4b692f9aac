// Streams an answer: stream HOST:PORT PROMPT
#include <recurve/client.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "stream HOST:PORT PROMPT\n";
    return 2;
  }
  try {
    recurve::Client client(argv[1]);
    recurve::v1::GenerateRequest request;
    request.set_text(argv[2]);
    request.mutable_stop()->set_max_tokens(16);
    request.mutable_sampling()->set_temperature(0);  // the most likely tokens: each time the same
    const auto print = [](const recurve::v1::GenerateResponse& response) {
      std::cout << response.chunk().text() << std::flush;
    };
    client.generate(request, print);
    std::cout << '\n';
  } catch (const recurve::ClientError& error) {
    std::cerr << "stream: " << error.what() << '\n';
    return 1;
  }
}
