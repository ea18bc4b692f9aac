#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/request/end_reason.h"
#include "server/request/prefix_use.h"
#include "server/request/session_command.h"
#include "server/sampling/sampled_token.h"

namespace recurve {

// Sent when the engine queues a request, before anything is computed.
struct Accepted {
  // To absorb: pending token, BOS and prompt. 0 if the prompt is streamed.
  int64_t prompt_tokens = 0;
  int64_t session_position = 0;       // tokens the session had absorbed before
  bool continues_text = false;        // the session had tokens other than control tokens
  std::optional<uint64_t> seed = {};  // of a recorded answer: the seed used then
};

// The end of one choice of a request.
struct StreamEnd {
  EndReason reason = EndReason::kInternal;
  int32_t stop_id = -1;      // the id that ended it, with kEos and kStopId
  std::string message = {};  // for refusals: what is wrong, what to change
  double retry_seconds = 0;  // with kOverloaded
  int64_t prompt_tokens = 0;
  PrefixUse prefix = {};  // of these, from the prefix cache
  int64_t generated_tokens = 0;
  int64_t session_position = 0;           // absorbed tokens of the session, without the pending one
  double queue_seconds = 0;               // from arrival to the first step
  double prefill_seconds = 0;             // from the first step to the first token
  double decode_seconds = 0;              // from the first token to the end
  std::optional<CommitInfo> commit = {};  // of the answer
  bool recorded = false;              // the tokens are those of an earlier answer to this request
  std::vector<float> embedding = {};  // (width), not normalized, if one was requested
};

// Tokens from the engine to one client: one stream for each choice of a request. Neither side
// blocks: the engine pushes, the frontend takes what has gathered when it can write. If a client
// reads too slowly, the stream becomes full and the engine leaves out its sequence until something
// is taken, so the contents are bounded. Owned by both, like PromptFeed; nothing else is. Any
// thread.
class TokenStream {
 public:
  // The stream is full from here on: some thousands of tokens. A step may exceed it.
  static constexpr size_t kMostUnreadBytes = 256 << 10;

  struct Gathered {
    std::optional<Accepted> accepted;  // once, first
    // Scores of the prompt's tokens without the first, in order; only if requested.
    std::vector<SampledToken> prompt;
    std::optional<int64_t> absorbed;   // ids of the prompt so far; only if requested
    std::vector<SampledToken> tokens;  // generated
    std::optional<StreamEnd> ending;   // once, last
    bool was_full = false;             // call AdmissionQueue::wake() after take()
    bool empty() const {
      return !accepted && prompt.empty() && !absorbed && tokens.empty() && !ending;
    }
  };

  // Engine side.
  void accept(const Accepted& accepted) {
    update([&] { gathered_.accepted = accepted; });
  }
  void push_prompt(std::vector<SampledToken> scored) {
    update([&] {
      for (SampledToken& token : scored) add(std::move(token), &gathered_.prompt);
    });
  }
  void push_progress(int64_t absorbed) {
    update([&] { gathered_.absorbed = absorbed; });
  }
  void push(SampledToken token) {
    update([&] { add(std::move(token), &gathered_.tokens); });
  }
  void finish(StreamEnd ending) {
    stalled_ = ending.reason == EndReason::kStalled;
    update([&] { gathered_.ending = std::move(ending); });
  }
  // Both at once, so that take() returns the end together with the last token.
  void push_last(SampledToken token, StreamEnd ending) {
    update([&] {
      add(std::move(token), &gathered_.tokens);
      gathered_.ending = std::move(ending);
    });
  }
  // Signals of the frontend.
  struct ClientSignals {
    bool cancelled = false;
    int64_t acknowledged = 0;           // tokens that the frontend has read
    std::optional<int64_t> stop_after;  // end with kStopString after that many tokens
    bool full = false;                  // push no more until something is taken
  };
  ClientSignals signals() {
    std::lock_guard lock(mutex_);
    signals_.full = unread_bytes_ >= kMostUnreadBytes;
    gathered_.was_full |= signals_.full;
    return signals_;
  }

  // The frontend's side. After a signal, and after taking from a stream that was full, call
  // AdmissionQueue::wake(): the engine may be asleep.
  Gathered take() {
    std::lock_guard lock(mutex_);
    unread_bytes_ = 0;
    return std::exchange(gathered_, {});
  }
  void cancel() {
    std::lock_guard lock(mutex_);
    signals_.cancelled = true;
  }
  void acknowledge(int64_t tokens) {
    std::lock_guard lock(mutex_);
    signals_.acknowledged = tokens;
  }
  void stop_after(int64_t tokens) {
    std::lock_guard lock(mutex_);
    signals_.stop_after = tokens;
  }
  // It has ended with kStalled.
  bool stalled() const { return stalled_; }
  // `wake` is called after each of the engine's calls, under this stream's lock and on the engine's
  // thread: it may only post work, never take() or write. Set it before the request is pushed.
  void on_ready(std::function<void()> wake) {
    std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

 private:
  void add(SampledToken token, std::vector<SampledToken>* to) {
    unread_bytes_ += sizeof(SampledToken) + token.top.size() * sizeof(TokenLogprob);
    to->push_back(std::move(token));
  }
  template <typename F>
  void update(F change) {
    std::lock_guard lock(mutex_);
    change();
    if (wake_) wake_();
  }
  mutable std::mutex mutex_;
  Gathered gathered_;
  size_t unread_bytes_ = 0;  // of the tokens gathered
  ClientSignals signals_;
  std::function<void()> wake_;
  std::atomic<bool> stalled_{false};
};

}  // namespace recurve
