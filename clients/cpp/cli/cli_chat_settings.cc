#include "clients/cpp/cli/cli_chat_settings.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "clients/cpp/cli/cli.h"
#include "clients/cpp/cli/cli_request_flags.h"
#include "server/startup/usage.h"

namespace recurve {
namespace {

void add_flags(CLI::App& app, v1::GenerateRequest* request) {
  app.set_help_flag();
  add_sampling_flags(app, request);
  add_stop_flags(app, request);
}

void add_text(const google::protobuf::Message& message, std::string* text) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const auto* field : fields) {
    std::string name = field->name();
    std::ranges::replace(name, '_', '-');
    const int count = field->is_repeated() ? message.GetReflection()->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      std::string value;
      google::protobuf::TextFormat::PrintFieldValueToString(message, field,
                                                            field->is_repeated() ? i : -1, &value);
      *text += fmt::format("{} {}\n", name, value);
    }
  }
}

}  // namespace

void apply_setting(const std::string& setting, v1::GenerateRequest* request) {
  v1::GenerateRequest changed = *request;
  CLI::App app;
  add_flags(app, &changed);
  const size_t space = setting.find(' ');
  std::vector<std::string> arguments = {"--" + setting.substr(0, space)};  // in reverse order
  const std::string value = space == std::string::npos ? "" : setting.substr(space + 1);
  if (!value.empty()) arguments.insert(arguments.begin(), value);
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    throw UsageError(usage_text(app, error));
  }
  *request = std::move(changed);
}

std::vector<std::string> setting_names() {
  v1::GenerateRequest request;
  CLI::App app;
  add_flags(app, &request);
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) names.push_back(option->get_lnames().front());
  return names;
}

std::string settings_text(const v1::GenerateRequest& request) {
  std::string text;
  add_text(request.sampling(), &text);
  add_text(request.stop(), &text);
  return text;
}

}  // namespace recurve
