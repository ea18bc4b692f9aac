#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/request/request.h"

namespace recurve {

// The answer of a turn of a durable or shared session, for a client that repeats the request.
struct RecordedAnswer {
  std::string digest = {};  // of what was asked for: see digest_of()
  EndReason reason = EndReason::kInternal;
  int32_t stop_id = -1;
  int64_t prompt_tokens = 0;
  int64_t before = 0, position = 0;  // tokens the session had absorbed before it and after it
  bool continues_text = false;       // the session had text before it
  uint64_t seed = 0;
  std::vector<int32_t> ids = {};
};

// JSON.
std::string to_text(const RecordedAnswer& answer);
// Throws std::runtime_error with a sentence if the text is no recorded answer, or has ids that are
// not below vocab.
RecordedAnswer recorded_answer_from(const std::string& text, int32_t vocab);

// Sends it as it was sent first.
void repeat(const RecordedAnswer& answer, const std::optional<CommitInfo>& commit,
            TokenStream& stream);

}  // namespace recurve
