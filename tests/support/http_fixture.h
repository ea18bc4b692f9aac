#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/http/server.h"
#include "tests/support/fake_engine.h"
#include "tests/support/fake_tokenizer.h"

namespace recurve::testing {

using nlohmann::json;

// A socket that is read to whatever end a response has.
class HttpClient {
 public:
  explicit HttpClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~HttpClient() { leave(); }
  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }

  void send(const std::string& bytes) {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // With a body, as JSON; of one that is a string, its bytes.
  void post(const std::string& path, const json& body, const std::string& headers = "") {
    const std::string text = body.is_string() ? body.get<std::string>() : body.dump();
    send("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         headers + "Content-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
  }
  void get(const std::string& path, const std::string& headers = "Host: localhost\r\n") {
    send("GET " + path + " HTTP/1.1\r\n" + headers + "\r\n");
  }
  // All up to `end`, which is taken too; what there was, where the connection ends before.
  std::string read_to(const std::string& end) {
    while (unread_.find(end) == std::string::npos) {
      char part[4096];
      const ssize_t got = recv(socket_, part, sizeof part, 0);
      if (got <= 0) return std::exchange(unread_, {});
      unread_.append(part, static_cast<size_t>(got));
    }
    const size_t size = unread_.find(end) + end.size();
    std::string taken = unread_.substr(0, size);
    unread_.erase(0, size);
    return taken;
  }
  struct Response {
    int status = 0;
    std::string head, body;
    json object() const { return json::parse(body, nullptr, false); }
  };
  Response read() {
    Response response{.head = read_to("\r\n\r\n"), .body = {}};
    if (response.head.size() < 12) return response;
    response.status = std::stoi(response.head.substr(9, 3));
    if (response.head.find("chunked") != std::string::npos) {
      while (true) {
        const auto size = std::stoul("0" + read_to("\r\n"), nullptr, 16);
        const std::string chunk = read_bytes(size + 2);
        if (size == 0 || chunk.size() < size + 2) return response;
        response.body += chunk.substr(0, size);
      }
    }
    const size_t at = response.head.find("Content-Length: ");
    if (at != std::string::npos)
      response.body = read_bytes(std::stoul(response.head.substr(at + 16)));
    return response;
  }
  bool closed() { return read_to("nothing comes").empty(); }

 private:
  std::string read_bytes(size_t count) {
    while (unread_.size() < count) {
      char part[4096];
      const ssize_t got = recv(socket_, part, sizeof part, 0);
      if (got <= 0) break;
      unread_.append(part, static_cast<size_t>(got));
    }
    std::string taken = unread_.substr(0, count);
    unread_.erase(0, taken.size());
    return taken;
  }
  int socket_;
  std::string unread_;
};

// The HTTP door before a fake engine that echoes the prompt.
class HttpFixture : public ::testing::Test {
 protected:
  void start(FakeEngine::Options options = {}, HttpOptions http = {}) {
    Chat chat{.format = std::make_shared<const ChatTemplate>(
                  "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}", "",
                  jinja::Template::Variables{}),
              .exists = true,
              .problem = ""};
    engine_.emplace(queue_, std::move(options));
    http.listen = "127.0.0.1:0";
    server_.emplace(http, serving_, connections_);
    serving_.serve(std::make_shared<FakeTokenizer>(),
                   {.model_name = "fake",
                    .vocab_rows = FakeTokenizer::kSize,
                    .tokens = {.bos = FakeTokenizer::kBos, .eos = {FakeTokenizer::kEos}},
                    .slots = 8},
                   std::move(chat));
  }
  void TearDown() override {
    if (server_) server_->shutdown();
    EXPECT_EQ(serving_.under_way(), 0);
    engine_.reset();
  }
  HttpClient::Response ask(const std::string& line) {
    HttpClient client(server_->port());
    client.send(line + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read();
  }
  HttpClient::Response post(const std::string& path, const json& body,
                            const std::string& headers = "") {
    HttpClient client(server_->port());
    client.post(path, body, headers);
    return client.read();
  }
  static json completion(const std::string& prompt) {
    return {{"model", "fake"}, {"prompt", prompt}};
  }
  static json chat(const std::string& content) {
    return {{"model", "fake"}, {"messages", {{{"role", "user"}, {"content", content}}}}};
  }
  // The objects of a stream, which must end as the dialect says.
  static std::vector<json> events(const std::string& body) {
    std::vector<json> events;
    size_t at = 0;
    for (size_t end; (end = body.find("\n\n", at)) != std::string::npos; at = end + 2) {
      EXPECT_EQ(body.substr(at, 6), "data: ");
      const std::string data = body.substr(at + 6, end - at - 6);
      if (data == "[DONE]") {
        EXPECT_EQ(end + 2, body.size());
        return events;
      }
      events.push_back(json::parse(data));
    }
    ADD_FAILURE() << "no [DONE]: " << body;
    return events;
  }

  Metrics metrics_;
  EngineStats stats_;
  AdmissionQueue queue_{16};
  Connections connections_{{.in_all = 100, .by_network = 100}};
  Serving serving_{{}, queue_, stats_, metrics_};
  std::optional<FakeEngine> engine_;
  std::optional<HttpServer> server_;
};

}  // namespace recurve::testing
