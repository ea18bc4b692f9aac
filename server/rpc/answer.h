#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "recurve/v1/inference.pb.h"
#include "server/rpc/validate.h"
#include "server/sampling/sampled_token.h"
#include "server/text/stop_matcher.h"
#include "server/text/stream_decoder.h"
#include "server/text/tokenizer.h"

namespace recurve {

// One choice of a request on its way from tokens to text. One thread at a time.
class Answer {
 public:
  // The tokenizer outlives the answer.
  Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed);

  // Appends a token, and the text that has become certain with it, to the chunk. A token after a
  // stop string has matched is surplus and adds nothing. `ends`: the answer ends with this very
  // token, an end-of-sequence or stop id.
  void add(const SampledToken& token, bool ends, v1::Chunk* chunk);
  // Appends what was held back. Nothing is added afterwards.
  void finish(v1::Chunk* chunk);

  bool stopped() const { return matcher_ && matcher_->matched(); }
  const std::string& stop_string() const { return matcher_->matched_text(); }  // if stopped()
  // Added so far, surplus ones not counted.
  int64_t tokens() const { return tokens_; }

 private:
  void add_text(const std::string& text, v1::Chunk* chunk);

  const Tokenizer& tokenizer_;
  const bool include_stop_;
  const bool logprobs_;
  StreamDecoder decoder_;
  std::optional<StopMatcher> matcher_;  // if there are stop strings
  int64_t tokens_ = 0;
};

void fill(const SampledToken& token, const Tokenizer& tokenizer, v1::TokenLogprob* out);
void fill(const Ending& ending, v1::Usage* usage);

// About what a token adds to a message, in bytes. Messages are cut near kMessageBytes, so that a
// client which was slow for a while is not sent one that it will not take (gRPC's default limit is
// 4 MiB).
inline constexpr size_t kMessageBytes = 256 << 10;
size_t size_of(const SampledToken& token, bool logprobs);

}  // namespace recurve
