// States exported by one server and imported by another, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>

#include "server/state/state_form.h"
#include "tests/support/generate_outcome.h"
#include "tests/support/http_client.h"
#include "tests/support/served_calls.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::export_test {

using grpc::StatusCode;
using ::testing::HasSubstr;

v1::GenerateRequest turn(const std::string& session, const std::string& text) {
  v1::GenerateRequest request = generate_request(text, 30);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_repetition_penalty(1.3f);  // depends on all previous tokens
  request.set_session(session);
  return request;
}

std::vector<int32_t> ask(Client& client, const v1::GenerateRequest& request) {
  std::vector<int32_t> ids;
  client.generate(request, [&](const v1::GenerateResponse& response) {
    const auto& of = response.chunk().ids();
    ids.insert(ids.end(), of.begin(), of.end());
  });
  return ids;
}

std::string exported(Client& client, const std::string& name, uint64_t offset = 0) {
  v1::ExportRequest request;
  request.set_name(name);
  request.set_offset(offset);
  std::string all;
  uint64_t wanted = 0;
  client.export_session(request, [&](std::string_view bytes, uint64_t total) {
    all += bytes;
    wanted = total;
  });
  EXPECT_EQ(all.size() + offset, wanted);
  return all;
}

class Export : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    here_ = std::make_unique<ServerProcess>(flags());
    there_ = std::make_unique<ServerProcess>(flags());
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(here_->stop(), 0);
    EXPECT_EQ(there_->stop(), 0);
    here_.reset();
    there_.reset();
  }
  Export() : a_(here_->address()), b_(there_->address()) {}

  void open(const std::string& name) {
    v1::OpenSessionRequest request;
    request.set_name(name);
    a_.open_session(request);
  }

  static std::unique_ptr<ServerProcess> here_, there_;
  Client a_, b_;
};
std::unique_ptr<ServerProcess> Export::here_, Export::there_;

TEST_F(Export, ContinuesElsewhereTheSame) {
  open("story");
  ask(a_, turn("story", "Once upon a time"));
  const v1::Session before = a_.get_session("story");
  const std::string state = exported(a_, "story");
  EXPECT_EQ(state, exported(a_, "story")) << "the same bytes again";
  EXPECT_EQ(state.substr(100'000), exported(a_, "story", 100'000));
  const v1::Session after = imported(b_, "tale", state);
  EXPECT_EQ(after.position(), before.position());
  EXPECT_EQ(after.pending_token(), before.pending_token());
  EXPECT_EQ(after.epoch(), 0u);
  imported(b_, "twin", state);
  const std::vector<int32_t> here = ask(a_, turn("story", "")), there = ask(b_, turn("tale", ""));
  EXPECT_EQ(here, there);
  EXPECT_EQ(ask(b_, turn("twin", "")), here) << "a state may be imported any number of times";
  EXPECT_EQ(ask(a_, turn("story", " And")), ask(b_, turn("tale", " And")));
  EXPECT_EQ(exported(a_, "story").size(), exported(b_, "tale").size());
}

TEST_F(Export, RefusesMismatchesByName) {
  open("old");
  EXPECT_THAT(failure_of([&] { exported(a_, "old"); }),
              ::testing::Pair(StatusCode::FAILED_PRECONDITION, HasSubstr("is empty")));
  EXPECT_EQ(failure_of([&] { exported(a_, "unknown"); }).first, StatusCode::NOT_FOUND);
  ask(a_, turn("old", "Once upon a time"));
  const std::string state = exported(a_, "old");
  EXPECT_THAT(failure_of([&] { exported(a_, "old", state.size() + 1); }),
              ::testing::Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("offset")));

  const auto refused = [&](const std::string& bytes) {
    return failure_of([&] { imported(b_, "new", bytes); });
  };
  std::string damaged = state;
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_THAT(refused(damaged), ::testing::Pair(StatusCode::INVALID_ARGUMENT,
                                                HasSubstr("cannot be imported: the checksum")));
  EXPECT_THAT(refused(state.substr(0, state.size() - 1)),
              ::testing::Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("gives another size")));
  EXPECT_EQ(refused("").first, StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused(std::string(100'000, 'x')).first, StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused(std::string(4'000'000, 'x')),
              ::testing::Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("at most")));
  EXPECT_EQ(failure_of([&] { b_.get_session("new"); }).first, StatusCode::NOT_FOUND);
  imported(b_, "new", state);
  EXPECT_EQ(refused(state).first, StatusCode::ALREADY_EXISTS);

  // The larger of the two states.
  for (const char* model : {"mamba-books", "parity-mamba"}) {
    ServerProcess other(flags({}, model));
    Client client(other.address());
    ASSERT_NE(client.model_info().state_bytes(), a_.model_info().state_bytes());
    EXPECT_THAT(failure_of([&] { imported(client, "new", state); }),
                ::testing::Pair(StatusCode::FAILED_PRECONDITION, HasSubstr("the model")))
        << model;
    EXPECT_EQ(other.stop(), 0);
  }
}

TEST_F(Export, OverHttpIsTheSameAsOverGrpc) {
  open("web");
  ask(a_, turn("web", "Once upon a time"));
  const std::string state = exported(a_, "web");
  const auto got = get(here_->http_port(), "/v1/sessions/web/state");
  EXPECT_EQ(got.status, 200);
  EXPECT_THAT(got.head, HasSubstr("Content-Type: application/octet-stream"));
  ASSERT_EQ(got.body, state);

  const auto made = put(there_->http_port(), "/v1/sessions/put/state?rewind_tokens=5", state);
  EXPECT_EQ(made.status, 201) << made.body;
  EXPECT_EQ(made.object()["position"], a_.get_session("web").position());
  EXPECT_EQ(made.object()["rewind_tokens"], 5);
  imported(b_, "rpc", got.body);
  const std::vector<int32_t> here = ask(a_, turn("web", ""));
  EXPECT_EQ(ask(b_, turn("put", "")), here);
  EXPECT_EQ(ask(b_, turn("rpc", "")), here);
}

TEST_F(Export, OverHttpRefusesByName) {
  open("refusals");
  const int port = here_->http_port();
  EXPECT_EQ(get(port, "/v1/sessions/unknown/state").status, 404);
  EXPECT_THAT(get(port, "/v1/sessions/refusals/state").body, HasSubstr("it has no state yet"));
  ask(a_, turn("refusals", "Once upon a time"));
  const std::string state = exported(a_, "refusals"), path = "/v1/sessions/new/state";
  const auto refused = [&](const std::string& bytes, const std::string& query = "") {
    const auto got = put(port, path + query, bytes);
    return std::pair(got.status, got.body);
  };
  using ::testing::Pair;
  std::string damaged = state;
  damaged[damaged.size() / 2] ^= 1;
  EXPECT_THAT(refused(damaged), Pair(400, HasSubstr("cannot be imported: the checksum")));
  EXPECT_THAT(refused(state.substr(0, state.size() - 1)),
              Pair(400, HasSubstr("gives another size")));
  EXPECT_THAT(refused(""), Pair(400, HasSubstr("cannot be imported")));
  EXPECT_THAT(refused(std::string(100'000, 'x')), Pair(400, HasSubstr("cannot be imported")));
  EXPECT_THAT(refused(std::string(64 << 20, 'x')), Pair(413, HasSubstr("must have at most")));
  EXPECT_THAT(refused(state, "?ttl_seconds=soon"), Pair(400, HasSubstr("ttl_seconds")));
  EXPECT_THAT(refused(state, "?rewind_tokens=-1"), Pair(400, HasSubstr("rewind_tokens")));
  EXPECT_THAT(refused(state, "?rewind_tokens=1.5"), Pair(400, HasSubstr("rewind_tokens")));
  EXPECT_THAT(refused(state, "?durability=much"), Pair(400, HasSubstr("durability")));
  EXPECT_EQ(get(port, "/v1/sessions/new").status, 404);
  EXPECT_EQ(put(port, path, state).status, 201);
  EXPECT_EQ(put(port, path, state).status, 409);
}

TEST_F(Export, AClientThatReadsNothingLeavesTheServer) {
  open("slow");
  ask(a_, turn("slow", "Once upon a time"));
  {
    HttpClient client(here_->http_port(), /*receive_bytes=*/4096);
    client.get("/v1/sessions/slow/state");
    EXPECT_THAT(client.read_to("\r\n\r\n"), HasSubstr("200 OK"));
  }
  const auto head = [&] {
    HttpClient client(here_->http_port());
    client.send("HEAD /v1/sessions/slow/state HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return client.read_to("\r\n\r\n");
  }();
  EXPECT_THAT(head, HasSubstr("Content-Length: " + std::to_string(exported(a_, "slow").size())));
}

// A state that can be written with other numbers.
struct Forged {
  explicit Forged(const std::string& written) {
    const auto read = [&](uint64_t offset, std::span<std::byte> to) {
      std::memcpy(to.data(), written.data() + offset, to.size());
    };
    header = read_state_header(written.size(), read);
    image = make_image(header.layout);
    header = read_state(written.size(), read, header, image.rooms);
  }
  // In the first array of that name.
  std::span<std::byte> array(const std::string& name) const {
    const auto& arrays = header.layout.arrays;
    const auto at = std::ranges::find(arrays, name, &StateArray::name) - arrays.begin();
    return spans_of_arrays(header.layout, image.rooms).at(static_cast<size_t>(at));
  }
  std::string written() const {
    const StateFrame frame = frame_of(header, image.image);
    std::string all = frame.front;
    for (const std::string_view part : written_parts(header, image.image)) all += part;
    return all + frame.back;
  }

  StateHeader header;
  NewImage image;
};

// With valid checksums.
TEST(ForgedStates, AreRefusedByName) {
  const std::string config =
      std::string(RECURVE_SOURCE_DIR) + "/tests/golden/recurrent_gemma/groups/config.json";
  ServerProcess server({"--model", config, "--random-weights", "--slots", "2"});
  Client client(server.address());
  v1::OpenSessionRequest open;
  open.set_name("honest");
  client.open_session(open);
  v1::GenerateRequest request;
  for (const int32_t id : {1, 2, 3}) request.mutable_ids()->add_ids(id);
  request.mutable_stop()->set_max_tokens(4);
  request.set_session("honest");
  ask(client, request);
  const std::string honest = exported(client, "honest");
  const auto refusal = [&](const auto& number, const char* array) {
    const Forged forged(honest);
    const std::span<std::byte> room = forged.array(array);
    for (size_t at = 0; at < room.size(); at += sizeof number) {
      std::memcpy(room.data() + at, &number, sizeof number);
    }
    return failure_of([&] { imported(client, "forged", forged.written()); });
  };
  for (const int32_t position : {-2, INT32_MIN, -100, INT32_MAX}) {
    EXPECT_THAT(refusal(position, "position"),
                ::testing::Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("position")));
  }
  for (const float bad : {-INFINITY, INFINITY, NAN}) {
    for (const char* array : {"h", "conv", "ring_k", "ring_v"}) {
      EXPECT_THAT(refusal(bad, array),
                  ::testing::Pair(StatusCode::INVALID_ARGUMENT, HasSubstr("finite")));
    }
  }
  EXPECT_EQ(Forged(honest).written(), honest);
  imported(client, "forged", honest);
  request.set_session("forged");
  EXPECT_EQ(ask(client, request).size(), 4u);
  EXPECT_EQ(server.stop(), 0);
}

}  // namespace recurve::testing::export_test
