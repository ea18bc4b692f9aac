// The engine of the server fails: all clients get an error, and the process exits properly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/generate_outcome.h"
#include "tests/support/server_process.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::engine_failure_test {

using grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

TEST(EngineFailureFault, EndsStreamsWithInternalLogsAndExits) {
  const TempDir directory;
  const std::string file = directory / "fail";
  setenv("LD_PRELOAD", RECURVE_FAIL_ALLOCATION_LIBRARY, 1);
  setenv("RECURVE_FAIL_ALLOCATION", file.c_str(), 1);
  // In a sandbox the library could not remove the file.
  ServerProcess server({"--sandbox", "off", "--model",
                        std::string(RECURVE_SOURCE_DIR) + "/weights_tools/demo/xlstm-books"});
  unsetenv("LD_PRELOAD");
  const auto stub = v1::Inference::NewStub(own_channel(server.address()));
  // If only one request was refused for it, the next try may hit another allocation.
  grpc::Status status;
  for (int tries = 0; tries < 100 && status.error_code() != StatusCode::INTERNAL; ++tries) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, generate_request("It was a cold evening", 300));
    v1::GenerateResponse response;
    for (int messages = 0; reader->Read(&response); ++messages) {
      if (messages == tries % 3) std::ofstream(file) << "now";
    }
    status = reader->Finish();
    ASSERT_THAT(status.error_code(), AnyOf(Eq(StatusCode::OK), Eq(StatusCode::RESOURCE_EXHAUSTED),
                                           Eq(StatusCode::INTERNAL)))
        << status.error_message() << server.log();
  }
  ASSERT_THAT(status.error_message(), HasSubstr("the server has failed"));
  EXPECT_EQ(server.wait(), 1);
  EXPECT_THAT(server.log(), HasSubstr("event=failed part="));
  EXPECT_THAT(server.log(), HasSubstr("event=stopped"));
}

}  // namespace recurve::testing::engine_failure_test
