#pragma once
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "model/model.h"
#include "server/request/engine_stats.h"
#include "server/request/serving_info.h"
#include "server/startup/memory_plan.h"
#include "server/startup/options.h"
#include "server/text/chat/chat_template.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// What the server is about to use, for the operator: a few aligned lines. stats: of the engine,
// once it has looked at the folder of states.
std::string startup_table(const Options& options, const Model& model, const Tokenizer& tokenizer,
                          const Chat& chat, const Backend& backend, const ServingInfo& info,
                          const MemoryPlan& plan, const EngineStats& stats, int port);

// Memory the process holds now, in bytes, from /proc/self/statm; 0 where there is none.
int64_t resident_bytes();

// "1.5 GiB"
std::string human_bytes(double bytes);

}  // namespace recurve
