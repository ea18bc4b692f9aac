#include "server/serving/call_trace.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace recurve {
namespace {

// Empty unless valid by W3C Trace Context.
std::string checked_state(std::string state) {
  constexpr size_t kMost = 512;
  const bool printable =
      std::all_of(state.begin(), state.end(), [](char c) { return c >= ' ' && c < 127; });
  if (state.size() > kMost || !printable) return {};
  return state;
}

Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::max(seconds, 0.0)));
}

}  // namespace

CallTrace::CallTrace(Tracer* tracer, CallOrigin origin, Clock::time_point arrival)
    : arrival_(arrival) {
  const std::optional<TraceContext> context = parse_traceparent(origin.traceparent);
  if (context) id_ = to_hex(context->trace);
  if (tracer == nullptr || (context ? !context->sampled : !tracer->begins_trace())) return;
  tracer_ = tracer;
  call_ = {.trace = context ? context->trace : make_trace_id(),
           .id = make_span_id(),
           .parent = context ? context->span : SpanId{},
           .state = context ? checked_state(std::move(origin.tracestate)) : "",
           .name = std::move(origin.operation),
           .of_server = true};
  id_ = to_hex(call_.trace);
}

void CallTrace::ended(const Refused& refusal, const StreamEnd* last, const std::string& request_id,
                      std::string_view tenant) {
  if (tracer_ == nullptr) return;
  call_.attributes = {{"recurve.request_id", request_id},
                      {"recurve.tenant", std::string(tenant)},
                      {"recurve.code", std::string(code_name(refusal))}};
  if (refusal) call_.error = refusal->message;
  if (last == nullptr) return;
  call_.attributes.emplace_back("recurve.finish", std::string(row_of(last->reason).name));
  call_.attributes.emplace_back("gen_ai.usage.input_tokens", last->prompt_tokens);
  call_.attributes.emplace_back("gen_ai.usage.output_tokens", last->generated_tokens);
  call_.attributes.emplace_back("recurve.prefix_tokens", last->prefix.tokens);
  if (!is_refusal(last->reason)) ending_ = *last;
}

// Spans have wall-clock times; the times of the call are those of the steady clock.
void CallTrace::delivered() {
  if (tracer_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  const TraceSpan::Time wall = std::chrono::system_clock::now();
  const auto time_of = [&](Clock::time_point at) {
    return wall - std::chrono::duration_cast<TraceSpan::Time::duration>(now - at);
  };
  call_.begin = time_of(arrival_);
  call_.end = wall;
  std::vector<TraceSpan> spans = {call_};
  if (ending_) {
    Clock::time_point at = arrival_;
    const auto add = [&](const char* name, Clock::time_point end) {
      spans.push_back({.trace = call_.trace,
                       .id = make_span_id(),
                       .parent = call_.id,
                       .state = call_.state,
                       .name = name,
                       .begin = time_of(at),
                       .end = time_of(end)});
      at = end;
    };
    add("queue", std::min(at + of_seconds(ending_->queue_seconds), now));
    add("prefill", std::min(at + of_seconds(ending_->prefill_seconds), now));
    add("decode", std::min(at + of_seconds(ending_->decode_seconds), now));
    add("deliver", now);
  }
  std::exchange(tracer_, nullptr)->record(std::move(spans));
}

}  // namespace recurve
