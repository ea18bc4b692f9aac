#pragma once
#include <chrono>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/op_cost.h"

namespace recurve::bench {

// A call of an op as it was made: to be made again while the memory it was given is there.
struct OpCall {
  std::string op, implementation;
  OpCost cost;
  double seconds;  // until it returned; a GPU's ops are only queued then
  std::function<void(Stream&)> run;
};

// Another backend, whose calls of ops can be watched: by one thread of the process at a time.
class WatchedBackend : public Backend {
 public:
  explicit WatchedBackend(Backend& inner)
      : Backend(inner.name(), watched(inner.kernels())), inner_(inner) {
    device_ = &inner;
  }

  // What `work` calls.
  template <typename Work>
  static std::vector<OpCall> calls_of(const Work& work) {
    calls_.emplace();
    work();
    return *std::exchange(calls_, std::nullopt);
  }

  size_t free_memory() const override { return inner_.free_memory(); }
  std::unique_ptr<Stream> make_stream() override { return inner_.make_stream(); }
  std::unique_ptr<Event> make_event() override { return inner_.make_event(); }
  bool queues() const override { return inner_.queues(); }
  void upload(void* device, const void* host, size_t bytes, Stream& stream) override {
    inner_.upload(device, host, bytes, stream);
  }
  void download(void* host, const void* device, size_t bytes, Stream& stream) override {
    inner_.download(host, device, bytes, stream);
  }
  void copy(void* to, const void* from, size_t bytes, Stream& stream) override {
    inner_.copy(to, from, bytes, stream);
  }
  void zero(void* device, size_t bytes, Stream& stream) override {
    inner_.zero(device, bytes, stream);
  }
  std::unique_ptr<Recording> record(std::function<void()> work, Stream& stream) override {
    return inner_.record(std::move(work), stream);
  }

 private:
  // The op as the inner backend has it, behind a function that notes the call.
  template <typename OpType>
  struct Watched {
    using Args = typename OpType::Args;
    static inline std::string name;
    static inline OpType op;
    static void run(const Args& args, Stream& stream) {
      if (!calls_.has_value()) return op(args, stream);
      const auto began = std::chrono::steady_clock::now();
      op(args, stream);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
      calls_->push_back({name, implementation_for(args), cost(args, stream), took.count(),
                         [args, of = op](Stream& again) { of(args, again); }});
    }
    // A group while nothing is noted; then each layer is a call.
    static void run_group(std::span<const Args> layers, Stream& stream) {
      if (!calls_.has_value()) return op.run_group(layers, stream);
      for (const Args& layer : layers) run(layer, stream);
    }
    static OpCost cost(const Args& args, Stream& stream) {
      if constexpr (std::is_same_v<Args, PagedAttentionArgs>) {
        return cost_of(args, stored_tokens(args, stream));
      } else if constexpr (std::is_same_v<Args, ExpertLinearArgs>) {
        return cost_of(args, chosen_experts(args, stream));
      } else {
        return cost_of(args);
      }
    }
    // Formats of weights have separate implementations.
    static const char* implementation_for([[maybe_unused]] const Args& args) {
      if constexpr (requires { op.packed; }) {
        if (args.W.format != nullptr) return op.find(args.W.format)->implementation;
      }
      return op.implementation;
    }
  };
  template <typename OpType>
  static void watch(const char* name, OpType& op) {
    Watched<OpType>::name = name;
    Watched<OpType>::op = op;
    if (op.run != nullptr) op.run = Watched<OpType>::run;
    if constexpr (requires { op.packed; }) {  // of every format: the op that is watched finds them
      for (auto& linear : op.packed) linear.run = Watched<OpType>::run;
    }
    if constexpr (requires { op.run_group; }) {
      if (op.run_group != nullptr) op.run_group = Watched<OpType>::run_group;
    }
  }
  static Kernels watched(Kernels kernels) {
    Kernels::for_each_op([&](const char* name, auto member) { watch(name, kernels.*member); });
    return kernels;
  }

  // Tokens up to the last row of each sequence. What it reads is in the device's memory.
  static double stored_tokens(const PagedAttentionArgs& args, Stream& stream) {
    const Ragged& seqs = args.seqs;
    std::vector<int32_t> begin(static_cast<size_t>(seqs.num_seqs) + 1);
    std::vector<int32_t> slot(static_cast<size_t>(seqs.num_seqs));
    std::vector<int32_t> position(static_cast<size_t>(seqs.rows));
    for (const auto& [to, from] : {std::pair(&begin, seqs.begin), std::pair(&slot, seqs.slot),
                                   std::pair(&position, args.position)}) {
      device_->download(to->data(), from, to->size() * sizeof(int32_t), stream);
    }
    stream.wait();
    double tokens = 0;
    for (size_t seq = 0; seq < slot.size(); ++seq) {
      if (slot[seq] == 0 || begin[seq] == begin[seq + 1]) continue;
      tokens += position[static_cast<size_t>(begin[seq + 1]) - 1] + 1;
    }
    return tokens;
  }

  // That have rows.
  static int64_t chosen_experts(const ExpertLinearArgs& args, Stream& stream) {
    if (args.begin == nullptr) return 1;
    std::vector<int32_t> begin(static_cast<size_t>(args.E) + 1);
    device_->download(begin.data(), args.begin, begin.size() * sizeof(int32_t), stream);
    stream.wait();
    int64_t chosen = 0;
    for (size_t e = 0; e + 1 < begin.size(); ++e) chosen += begin[e] != begin[e + 1];
    return chosen;
  }

  std::byte* take_memory(size_t bytes) override {
    Buffer buffer = inner_.allocate(bytes);
    std::byte* data = buffer.data();
    buffers_[data] = std::move(buffer);
    return data;
  }
  void give_memory(std::byte* data, size_t) override { buffers_.erase(data); }
  HostMemory take_host_memory(size_t bytes) override { return inner_.allocate_host(bytes); }

  static inline std::optional<std::vector<OpCall>> calls_;
  static inline Backend* device_ = nullptr;  // of the ops that are watched
  Backend& inner_;
  std::unordered_map<std::byte*, Buffer> buffers_;
};

}  // namespace recurve::bench
