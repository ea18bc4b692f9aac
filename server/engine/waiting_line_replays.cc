// WaitingLine: sessions that return to a token wait for a slot like a request whose prompt has the
// tokens that are to be absorbed again.
#include <new>
#include <utility>

#include "server/engine/waiting_line.h"

namespace recurve {
namespace {

// The tokens between the replay's beginning and its end. Each prompt and each sampled token begins
// with a step, as it did before.
PromptPhase prompt_of(const Replay& replay, int64_t rank) {
  PromptPhase prompt{.rank = rank};
  const int64_t begin = replay.begin.position, tokens = replay.log.end() - begin;
  prompt.ids.reserve(static_cast<size_t>(tokens));
  for (int64_t offset = 0; offset < tokens; ++offset) {
    const TokenLog::Entry entry = replay.log.at(begin + offset);
    if (offset > 0 && entry.form != TokenLog::Form::kPrompt) prompt.cuts.push_back(offset);
    prompt.ids.push_back(entry.id);
  }
  prompt.tokens = tokens;
  return prompt;
}

}  // namespace

void WaitingLine::arrive(std::unique_ptr<Replay> replay, const EngineLoad& load,
                         Clock::time_point now) {
  Replay& wanted = *replay;
  Line one;  // owns the replay, as the lines do, until the end
  SessionResult refused;
  try {
    Sequence& sequence = *one.emplace_back(std::make_unique<Sequence>());
    sequence.request.caller = wanted.command.caller;
    sequence.request.session = wanted.command.name;
    sequence.request.sampling.max_tokens = 0;
    sequence.request.arrival = now;
    sequence.request.streams.push_back(std::make_shared<TokenStream>());
    sequence.prompt = prompt_of(wanted, rank_of(now, 0));
    sequence.session = wanted.session;
    sequence.position = wanted.begin.position;
    sequence.replay = std::move(replay);
    const StreamEnd late = overload(sequence, load, now);
    if (late.message.empty()) {
      const bool reads = wanted.begin.stored && !wanted.begin.image;
      reads ? read_begin(one) : line_up(one);
      return queue_.count_requeued();
    }
    refused = {.reason = late.reason, .message = late.message};
  } catch (const std::bad_alloc&) {
    refused = {.reason = EndReason::kNoMemory};
  }
  sessions_.cancel_replay(wanted, std::move(refused));
}

// Reads the state that it begins with, which is on the disk alone.
void WaitingLine::read_begin(Line& one) {
  const auto read = std::make_shared<DiskRead>(DiskRead{.under_way = true});
  sessions_.read(one.front()->replay->begin,
                 [read](const Archive::Loaded& loaded, const StateImage& image) {
                   read->under_way = false;
                   read->error = loaded.error;
                   read->reason = loaded.reason;
                   read->image = image;
                   read->history = TokenHistory::of(loaded.header.history);
                 });
  wait_for_disk(one, read, one.front()->session);
}

// Its read has ended.
void WaitingLine::resume_replay(Line& one, Clock::time_point now) {
  Sequence& sequence = *one.front();
  const auto read = std::exchange(sequence.disk_read, nullptr);
  if (!read->error.empty()) {
    sessions_.cancel_replay(*sequence.replay,
                            {.reason = read->reason,
                             .message = "the state to return to cannot be read: " + read->error});
    return queue_.count_removed(1);
  }
  sequence.replay->begin.image = std::move(read->image);
  sequence.replay->begin.history = std::move(read->history);
  try {
    line_up(one);
  } catch (const std::bad_alloc&) {
    drop(one.front(), EndReason::kNoMemory, now);
  }
}

}  // namespace recurve
