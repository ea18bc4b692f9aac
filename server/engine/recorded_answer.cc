#include "server/engine/recorded_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "server/engine/request_digest.h"

namespace recurve {

using nlohmann::json;

std::string to_text(const RecordedAnswer& answer) {
  return json{{"digest", answer.digest},
              {"reason", row_of(answer.reason).name},
              {"stop", answer.stop_id},
              {"prompt_tokens", answer.prompt_tokens},
              {"before", answer.before},
              {"position", answer.position},
              {"continues_text", answer.continues_text},
              {"seed", answer.seed},
              {"ids", answer.ids}}
      .dump();
}

RecordedAnswer recorded_answer_from(const std::string& text, int32_t vocab) {
  RecordedAnswer answer;
  try {
    const json all = json::parse(text);
    answer = {.digest = all.at("digest"),
              .reason = reason_from(all.at("reason").get_ref<const std::string&>()),
              .stop_id = all.at("stop"),
              .prompt_tokens = all.at("prompt_tokens"),
              .before = all.at("before"),
              .position = all.at("position"),
              .continues_text = all.at("continues_text"),
              .seed = all.at("seed"),
              .ids = all.at("ids").get<std::vector<int32_t>>()};
  } catch (const json::exception&) {
    throw std::runtime_error("it lacks members");
  }
  const auto is_id = [&](int32_t id) { return id >= 0 && id < vocab; };
  if (!std::ranges::all_of(answer.ids, is_id)) throw std::runtime_error("it has unknown ids");
  return answer;
}

void repeat(const RecordedAnswer& answer, const std::optional<CommitInfo>& commit,
            TokenStream& stream) {
  stream.accept({.prompt_tokens = answer.prompt_tokens,
                 .session_position = answer.before,
                 .continues_text = answer.continues_text,
                 .seed = answer.seed});
  for (const int32_t id : answer.ids) stream.push({.id = id});
  stream.finish({.reason = answer.reason,
                 .stop_id = answer.stop_id,
                 .prompt_tokens = answer.prompt_tokens,
                 .generated_tokens = static_cast<int64_t>(answer.ids.size()),
                 .session_position = answer.position,
                 .commit = commit,
                 .recorded = true});
}

}  // namespace recurve
