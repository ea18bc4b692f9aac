#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/observe/metrics.h"
#include "server/request/admission_queue.h"
#include "server/request/engine_stats.h"
#include "server/rpc/serving_info.h"
#include "server/text/chat_template.h"
#include "server/text/tokenizer.h"

namespace recurve {

// gRPC counts a message's bytes in 31 bits.
inline constexpr int64_t kMostMessageBytes = (int64_t{1} << 31) - 1;

struct RpcOptions {
  std::string listen = "127.0.0.1:50051";  // HOST:PORT, [::1]:PORT or unix:PATH; port 0: any
  std::string version = "unknown";
  // Of one request message; larger: RESOURCE_EXHAUSTED. At most kMostMessageBytes.
  int64_t max_message_bytes = 16 << 20;
  bool request_compression = false;  // else UNIMPLEMENTED: a small message may become a large one
  bool reflection = true;
  int max_connections = 0;             // 0: what the limit of open files leaves, 10,000 at most
  int max_connections_by_address = 0;  // 0: half of all
  int max_streams = 1024;              // concurrent calls of one connection; more of them wait
  int delivery_threads = 2;            // detokenise and write
  int text_threads = 2;                // check and tokenise prompts
  int max_tokenising = 1024;           // calls that wait for those; more: RESOURCE_EXHAUSTED

  // Of requests' messages; more: RESOURCE_EXHAUSTED. gRPC may hold as much again of messages on
  // their way, or four of the largest.
  int64_t max_bytes_under_way = 256 << 20;
  int64_t max_prompt_tokens = 1 << 20;
  int64_t max_unbroken_bytes = 1 << 20;  // of a Score's text that wait for a border between tokens
  // A slot waits so long for the rest of a Score's text, or for a client that reads nothing.
  double stall_seconds = 60;
  int32_t max_generated_tokens = 1 << 20;

  double drain_seconds = 30;  // for requests under way, where Drain names no deadline
  // What Drain calls, with its deadline in seconds, on a thread of the server's: may only post.
  // Each Drain does; the deadline of drain() is the server's own affair. Whoever waits for it calls
  // drain() and shutdown(). Empty: Drain is UNIMPLEMENTED.
  std::function<void(double seconds)> on_drain;
  // Called on a thread of the server's if it can no longer serve, with one line for the log: may
  // only post. Empty: the process ends.
  std::function<void(const char* what)> on_failure;
};

// The door: listens, and turns calls into requests for the engine and tokens into messages.
//
//   RpcServer rpc(options, queue, stats, metrics);  // listens; health NOT_SERVING
//   rpc.serve(tokenizer, info, chat);               // the engine runs: health SERVING
//   rpc.drain(deadline);                            // health NOT_SERVING, waits
//   rpc.shutdown();
//
// The engine has to run until shutdown() has returned: each request handed to it gets its ending.
// All methods may be called from any thread, serve() and shutdown() once.
class RpcServer {
 public:
  // All references outlive the server. Throws std::runtime_error with a sentence if it cannot
  // listen, or an option is out of its range.
  RpcServer(RpcOptions options, AdmissionQueue& queue, const EngineStats& stats, Metrics& metrics);
  ~RpcServer();

  int port() const;  // the one bound; 0 for a unix socket

  // From loading to serving.
  void serve(std::shared_ptr<const Tokenizer> tokenizer, ServingInfo info, Chat chat = {});

  // New requests get UNAVAILABLE from now on; returns when those under way have ended. What is left
  // at the deadline is cancelled, and gets UNAVAILABLE. False if there was any. A call of Drain,
  // before or meanwhile, may have set an earlier deadline. Does not close the queue.
  bool drain(Clock::time_point deadline);

  // Cancels what is left, closes all connections. After it, no call is under way.
  void shutdown();

  // Calls of Generate and Score that have not ended.
  int under_way() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace recurve
