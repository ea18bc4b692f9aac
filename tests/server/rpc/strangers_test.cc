// On a server with keys, a call without one is refused at its headers.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>

#include <string>

#include "server/identity/key_file.h"
#include "server/identity/keyring.h"
#include "tests/support/rpc_fixture.h"
#include "tests/support/temp_dir.h"

namespace recurve::strangers_test {

using grpc::StatusCode;

class StrangersTest : public RpcFixture {
 protected:
  void start_with_keys() {
    key_ = add_key((folder_ / "keys.json").string(), "alice", Role::kUser, {});
    start({}, {.core = {.keys = std::make_shared<Keyring>((folder_ / "keys.json").string())}});
  }
  // The status, within that many seconds, of a call without a message.
  grpc::Status status_without_message(const std::string& path, int seconds,
                                      const std::string& key = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channel_);
    const auto call = stub.PrepareCall(&context, path, &queue);
    grpc::Status status;
    call->StartCall(nullptr);
    call->Finish(&status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    for (int events = 0; events < 2; ++events) queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) continue;
    return status;
  }

  const TempDir folder_;
  std::string key_;
};

TEST_F(StrangersTest, ACallWithoutAKeyIsRefusedBeforeItsMessageIsRead) {
  start_with_keys();
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const char* name : {"Inference", "Sessions", "Control"}) {
    const auto* service = pool->FindServiceByName(std::string("recurve.v1.") + name);
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = "/" + service->full_name() + "/" + service->method(i)->name();
      EXPECT_EQ(status_without_message(path, 60).error_code(), StatusCode::UNAUTHENTICATED) << path;
      EXPECT_EQ(status_without_message(path, 60, "a wrong one").error_code(),
                StatusCode::UNAUTHENTICATED)
          << path;
    }
  }
}

TEST_F(StrangersTest, ACallWithAKeyIsAnswered) {
  start_with_keys();
  EXPECT_EQ(status_without_message("/recurve.v1.Inference/Generate", 1, key_).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + key_);
  const Generated got = generate(text_request("hello"), &context);
  EXPECT_TRUE(got.status.ok()) << got.status.error_message();
  EXPECT_EQ(got.text(), "hello");
}

}  // namespace recurve::strangers_test
