#pragma once
#include <nlohmann/json_fwd.hpp>

#include "clients/loadgen/report/report.h"

namespace recurve::loadgen {

// The whole report. Names end in their unit; rates are a second; times without a unit in their name
// do not occur.
//
// {
//   "format": 1,                       // changes where a reader of before would misread
//   "date": "2026-11-21 16:30:00",     // UTC
//   "command": "recurve-loadgen --rate 5",
//   "server": {"address", "version", "model", "family", "parameters", "weight_type",
//              "weight_bytes", "state_bytes", "backend", "slots", "max_queue"},
//   "workload": "prompts of 128 tokens, ...",
//   "service_level": {"ttft_ms": 500, "tpot_ms": 30},
//   "warmup_s": 3, "duration_s": 20,
//   "trials": [{                       // one; in a sweep several, in the order they ran
//     "load": "closed loop, 8 streams",
//     "rate": null,                    // of an open loop: conversations offered a second
//     "streams": 8,                    // of a closed loop
//     "window_s": {"begin": 3, "end": 23},   // the measured part, counted from the start
//     "requests": {"measured", "good", "failed", "repeated", "errors": {"RESOURCE_EXHAUSTED": 3}},
//     "throughput": {"answers_per_s", "tokens_per_s", "prompt_tokens_per_s",
//                    "good_requests_per_s", "good_share"},
//     "holds_service_level": true,     // p99 of TTFT and TPOT within it, at most 1 % failed
//     "latency": {                     // ttft, tpot, inter_token, end_to_end, queue, prefill
//       "ttft": {"count", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms",
//                "histogram": [[low_ms, high_ms, count], ...]}, ...},
//     "timeline": [{"second": 0, "due", "ended", "failed", "tokens", "prompt_tokens"}, ...],
//     "client": {"send_delay_p99_ms", "send_delay_max_ms", "timer_lateness_p99_ms",
//                "timer_lateness_max_ms", "handling_delay_p99_ms", "handling_delay_max_ms",
//                "cpu_cores", "busiest_worker"},
//     "interrupted": false,
//     "warnings": ["..."]
//   }],
//   "sweep": {"highest_rate": 12.5,    // null where no rate held; the key is absent without a
//   sweep
//             "overload_trial": 7}     // number in trials of the one at twice that rate, or null
// }
nlohmann::json to_json(const Report& report);

}  // namespace recurve::loadgen
