#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/tensor.h"
#include "server/observe/log.h"

namespace recurve {

// Of sizes: the server chooses.
inline constexpr uint64_t kAutomatic = std::numeric_limits<uint64_t>::max();
inline constexpr double kAutomaticTtft = -1;  // see kAutomaticFirstTokenBound

// Whether weights are used in place, in the mapped files.
enum class MapWeights : uint8_t { kAuto, kOn, kOff };

// What a file of models has for one of them instead of a flag.
struct OwnFlags {
  std::optional<int> slots;
  std::optional<std::string> device, weights;
  std::optional<MapWeights> map_weights;
  std::optional<uint64_t> kv_memory, session_memory, prefix_memory;
};
// An initial state or an adapter of the command line or of a file of models.
struct NamedPath {
  std::string model = {};  // its name; empty: the first
  std::string name = {};
  std::string path = {};
};
// A model of the command line or of a file.
struct ModelEntry {
  std::string name = {};  // empty: the last part of the path
  std::string path = {};
  OwnFlags own = {};
  std::vector<NamedPath> initial_states = {}, adapters = {};  // of a file of models
};
// Which one of the models of a process this is: they share memory and disk.
struct Sharing {
  size_t index = 0, count = 1;
  // The part of `total` / `divisor` that falls to this model where those before it have theirs.
  size_t part_of(size_t remaining, size_t divisor = 1) const {
    return remaining / (divisor * count - index);
  }
};

// The command line of recurve-server. `recurve-server --help` is its reference.
struct Options {
  std::vector<ModelEntry> models;  // at least one, the first is that of requests that name none
  // Of the first; of options_of_models(), of each.
  std::string model;
  Sharing sharing;
  std::string model_root;  // folder of models that may be loaded later; empty: none are
  bool random_weights = false;
  std::string tokenizer;      // "none" or a directory; empty: `model`, or none for random weights
  std::string chat_template;  // a file or the name of a form; empty: the model's
  bool reasoning = true;      // is separated from the text of answers
  std::string name;           // empty: the last part of `model`
  std::string device = "cpu";
  bool on_gpu() const { return device.starts_with("cuda:"); }
  std::string listen = "127.0.0.1:50051";
  std::string http = "127.0.0.1:8000";  // HOST:PORT; empty: none
  std::vector<std::string> http_origins;
  bool http_page = true;
  int http_comment_ms = 15'000;
  std::string tls_cert, tls_key, tls_client_ca;  // files of PEM; empty: none
  std::string keys;                              // file of keys; empty: none
  std::string admin;                             // HOST:PORT for operators; empty: none
  bool insecure_network = false;
  bool sandbox = true;
  std::string metrics;  // HOST:PORT; empty: none
  std::string traces;   // URL of a collector; empty: none
  double trace_ratio = 1;
  int threads = 0;
  std::string weights = "auto";                // see WeightFormats::named()
  std::string head_weights;                    // of the embedding and the head; empty: as `weights`
  MapWeights map_weights = MapWeights::kAuto;  // see choose_mapping()
  DType state = DType::kF32;
  ActivationType activations = ActivationType::kF32;
  int slots = 0;  // 0: see choose_slots()
  DType kv = DType::kBF16;
  uint64_t kv_memory = kAutomatic;  // see plan_pages()
  int max_queue = 256;
  double stall_seconds = 60;
  uint64_t request_memory = uint64_t{256} << 20;
  int rows_per_step = 0;  // 0: see choose_rows()
  double tpot_ms = 30;
  double ttft_ms = kAutomaticTtft;
  uint64_t session_memory = kAutomatic;  // see plan_sessions()
  double session_ttl = 3600;
  uint64_t prefix_memory = kAutomatic;  // see plan_prefixes()
  bool prefix_shared = false;
  std::vector<NamedPath> initial_states, adapters;  // of options_of_models(): those of the model
  std::string state_dir;                            // empty: sessions end with the server
  std::string state_keys;            // file of keys for state_dir; empty: not encrypted
  uint64_t state_disk = kAutomatic;  // half of what is free
  std::string state_store;           // s3://BUCKET/PREFIX; empty: none
  std::string state_endpoint;        // http[s]://HOST[:PORT]; empty: AWS's own
  bool state_store_optional = false;
  bool drain_to_store = false;
  uint64_t prefix_store = 0;  // bytes of cached states of prompts in state_store; 0: none
  uint64_t max_message_bytes = uint64_t{16} << 20;
  int max_connections = 0;             // 0: see connection_limits()
  int max_connections_by_address = 0;  // the same
  bool request_compression = false;
  bool reflection = true;
  int64_t max_prompt_tokens = 1 << 20;
  int32_t max_generated_tokens = 1 << 20;
  int32_t max_tokens_default = 4096;  // of chats; 0: max_generated_tokens
  double drain_seconds = 30;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
};

// Fills `options` from the command line, and from the environment for flags that are not given.
// Returns an exit status if the process should end now (help, a bad flag), after printing why; -1
// to continue.
int parse_options(int argc, char** argv, Options* options);

}  // namespace recurve
