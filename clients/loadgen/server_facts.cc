#include "clients/loadgen/server_facts.h"

#include <fmt/format.h>

#include "clients/cpp/client.h"

namespace recurve::loadgen {
namespace {

constexpr std::chrono::duration<double> kTimeout(10);

WorkloadLimits limits_of(const v1::ModelInfo& model, const v1::ServerInfo::Limits& limits) {
  WorkloadLimits result{.token_count = model.token_count(),
                        .reserved = {model.eos_ids().begin(), model.eos_ids().end()},
                        .max_prompt_tokens = limits.max_prompt_tokens(),
                        .max_output_tokens = limits.max_generated_tokens()};
  if (model.has_bos_id()) result.reserved.push_back(model.bos_id());
  return result;
}

std::string parameters_text(int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  return count >= 1e9 ? fmt::format("{:.2f} G", count / 1e9) : fmt::format("{:.1f} M", count / 1e6);
}

}  // namespace

ServerFacts ask_server(Client& client, const std::string& name) {
  const CallOptions options{.timeout = kTimeout};
  const v1::ServerInfo server = client.server_info(options);
  const v1::ModelInfo model = client.model_info(options, name);
  return {.address = client.address(),
          .version = server.version(),
          .model = model.name(),
          .family = model.family(),
          .weight_type = model.weight_type(),
          .backend = model.backend(),
          .parameters = model.parameters(),
          .weight_bytes = model.weight_bytes(),
          .state_bytes = model.state_bytes(),
          .slots = server.limits().slots(),
          .max_queue = server.limits().max_queue(),
          .max_choices = server.limits().max_choices(),
          .limits = limits_of(model, server.limits())};
}

std::string describe(const ServerFacts& server) {
  return fmt::format("{} ({}, {} parameters in {}), {} slots, queue of {}; {}", server.model,
                     server.family, parameters_text(server.parameters), server.weight_type,
                     server.slots, server.max_queue, server.backend);
}

}  // namespace recurve::loadgen
