#include "server/rpc/library_log.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <filesystem>
#include <string>

#include "server/observe/log.h"

namespace recurve {
namespace {

void log_message(LogLevel level, const char* library, const char* file, int line,
                 const std::string& message) {
  log_event(level, "library_message",
            {{"library", library},
             {"file", std::filesystem::path(file).filename().string()},
             {"line", line},
             {"message", message}});
}

void from_grpc(gpr_log_func_args* args) {
  LogLevel level = LogLevel::kDebug;
  if (args->severity == GPR_LOG_SEVERITY_INFO) level = LogLevel::kInfo;
  if (args->severity == GPR_LOG_SEVERITY_ERROR) level = LogLevel::kError;
  log_message(level, "grpc", args->file, args->line, args->message);
}

void from_protobuf(google::protobuf::LogLevel severity, const char* file, int line,
                   const std::string& message) {
  LogLevel level = LogLevel::kError;
  if (severity == google::protobuf::LOGLEVEL_INFO) level = LogLevel::kInfo;
  if (severity == google::protobuf::LOGLEVEL_WARNING) level = LogLevel::kWarning;
  log_message(level, "protobuf", file, line, message);
}

}  // namespace

void log_what_libraries_say() {
  gpr_set_log_function(from_grpc);
  google::protobuf::SetLogHandler(from_protobuf);
}

}  // namespace recurve
