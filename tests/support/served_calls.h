#pragma once
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/support/generate_outcome.h"
#include "tests/support/http_client.h"
#include "tests/support/server_process.h"

// What tests of a server share that serves one of the demo models: its flags, and whole calls.
namespace recurve::testing {

inline const std::string kDemo = std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/";

using Flags = std::vector<std::string>;

inline Flags join(Flags one, const Flags& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

inline Flags flags(const Flags& more = {}, const std::string& model = "xlstm-books") {
  const Flags all = {"--model", kDemo + model, "--threads", "1", "--http", "127.0.0.1:0"};
  return join(all, more);
}

// What a server logs that does not start.
inline std::string why_not(const Flags& more, const std::string& model = "xlstm-books") {
  ServerProcess server(flags(more, model));
  EXPECT_NE(server.wait(), 0);
  return server.log();
}

struct WholeAnswer {
  std::vector<int32_t> ids = {};
  v1::Usage usage = {};
  int64_t position = 0;  // before it
};
inline WholeAnswer ask(Client& client, const v1::GenerateRequest& request) {
  WholeAnswer answer;
  const auto final = client.generate(request, [&](const v1::GenerateResponse& response) {
    const auto& of = response.chunk().ids();
    answer.ids.insert(answer.ids.end(), of.begin(), of.end());
    if (response.has_prompt()) answer.position = response.prompt().session_position();
  });
  answer.usage = final.usage();
  return answer;
}

// OK and an empty text where the call ends.
template <typename Call>
std::pair<grpc::StatusCode, std::string> failure_of(Call&& call) {
  try {
    call();
  } catch (const ClientError& error) {
    return {error.code(), error.what()};
  }
  return {};
}

inline std::string exported(Client& client, const std::string& name) {
  v1::ExportRequest request;
  request.set_name(name);
  std::string state;
  client.export_session(request, [&](std::string_view bytes, uint64_t) { state += bytes; });
  return state;
}

inline v1::Session imported(Client& client, const std::string& name, std::string_view state,
                            const std::string& model = "") {
  v1::ImportRequest first;
  first.set_name(name);
  first.set_model(model);
  return client.import_session(first, [&](std::string* bytes) {
    bytes->assign(state.substr(0, 77'777));
    state.remove_prefix(bytes->size());
    return !bytes->empty();
  });
}

// A drawn answer of 20 tokens, in a session unless its name is empty.
inline v1::GenerateRequest drawn_request(const std::string& text, const std::string& session) {
  v1::GenerateRequest request = generate_request(text, 20);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_temperature(1);
  request.set_session(session);
  return request;
}
inline v1::OpenSessionRequest open_request(const std::string& name, v1::Durability durability) {
  v1::OpenSessionRequest request;
  request.set_name(name);
  request.set_durability(durability);
  return request;
}
// The answer of a request in JSON, whose status is expected.
inline nlohmann::json posted(int port, const std::string& path, const nlohmann::json& body,
                             int status) {
  HttpClient client(port);
  client.post(path, body.dump());
  const HttpClient::Response response = client.read();
  EXPECT_EQ(response.status, status) << response.body;
  return response.object();
}
inline HttpClient::Response get(int port, const std::string& path) {
  HttpClient client(port);
  client.get(path);
  return client.read();
}
// The answer of an import; the server may refuse the state before it has read all of it.
inline HttpClient::Response put(int port, const std::string& path, const std::string& state) {
  HttpClient client(port);
  client.send("PUT " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(state.size()) + "\r\n\r\n");
  client.try_send(state);
  return client.read();
}

}  // namespace recurve::testing
