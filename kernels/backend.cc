#include "kernels/backend.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <future>
#include <new>
#include <set>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/arithmetic.h"
#include "kernels/host.h"
#include "kernels/reference/table.h"
#include "kernels/streaming_copy.h"
#if RECURVE_CPU
#include "kernels/cpu/isa.h"
#include "kernels/cpu/products/table.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/thread_pool.h"
#endif
#if RECURVE_CUDA
#include "kernels/cuda/common/backend.h"
#endif

namespace recurve {
namespace {

// From this size on memory is mapped, page by page as it is first touched: a slot of state that no
// session has used yet costs nothing.
constexpr size_t kMapFrom = size_t{1} << 20;
// In huge pages as far as they fit, where the system has them: states are copied twice as fast, and
// a step reads weights of a few MB sooner.
constexpr size_t kHugePage = size_t{2} << 20;
const size_t kSmallPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kAlignment = 64;
// From this size on another thread is worth the tens of microseconds until it has begun.
constexpr size_t kHandOverFrom = size_t{1} << 20;

// Keeps the work itself.
class CallAgain : public Recording {
 public:
  explicit CallAgain(std::function<void()> work) : work_(std::move(work)) {}
  void replay(Stream&) override { work_(); }

 private:
  const std::function<void()> work_;
};

// All work is done when it is recorded.
class PassedEvent : public Event {
 public:
  void record(Stream&) override {}
  void wait() override {}
};

class HostStream : public Stream {
  void wait() override {}
};

// The memory of the machine itself; every call is finished when it returns.
class HostBackend : public Backend {
 public:
  HostBackend(std::string name, const Kernels& kernels) : Backend(std::move(name), kernels) {}

  std::unique_ptr<Stream> make_stream() override { return std::make_unique<HostStream>(); }
  void upload(void* device, const void* host, size_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void copy(void* to, const void* from, size_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* device, size_t bytes, Stream&) override {
    if (bytes > 0) std::memset(device, 0, bytes);
  }
  bool computes_on_host() const override { return true; }
  bool hands_over_copies(size_t bytes) const override { return bytes >= kHandOverFrom; }

 private:
  std::byte* take_memory(size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = bytes < kMapFrom ? take_small(bytes) : take_mapped(bytes);
    if (memory == nullptr) {
      throw std::runtime_error(fmt::format(
          "backend '{}' wanted {} bytes of memory and the system did not give them: fewer slots or "
          "a smaller model may fit",
          name(), bytes));
    }
    return static_cast<std::byte*>(memory);
  }

  void give_memory(std::byte* data, size_t bytes) override {
    if (bytes < kMapFrom) {
      std::free(data);
    } else {
      munmap(data, bytes);
    }
  }

  static void* take_small(size_t bytes) {
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, rounded);
    if (memory != nullptr) std::memset(memory, 0, rounded);
    return memory;
  }

  static void* take_mapped(size_t bytes) {
    const size_t whole = bytes / kHugePage * kHugePage;
    const size_t spare = whole == 0 ? 0 : kHugePage;  // to begin where a huge page may
    void* memory =
        mmap(nullptr, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    if (whole == 0) return memory;
    auto* const mapped = static_cast<std::byte*>(memory);
    const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage) % kHugePage;
    std::byte* const begin = mapped + before;
    const size_t used = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
    if (before > 0) munmap(mapped, before);
    if (std::byte* const end = begin + used; end < mapped + bytes + spare) {
      munmap(end, static_cast<size_t>(mapped + bytes + spare - end));
    }
    madvise(begin, whole, MADV_HUGEPAGE);
    return begin;
  }
};

#if RECURVE_CPU
// Its streams share the threads: where two of them compute at once, the second does so alone.
class CpuBackend : public HostBackend {
 public:
  CpuBackend(std::string name, const Kernels& kernels, int threads)
      : HostBackend(std::move(name), kernels), pool_(threads) {}
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<cpu::CpuStream>(pool_); }
  int threads() const override { return pool_.threads(); }

 private:
  cpu::ThreadPool pool_;
};
#endif

// "cpu/avx3" is asked for as "cpu".
std::string_view short_name(std::string_view implementation) {
  return implementation.substr(0, implementation.find('/'));
}

struct Forced {
  std::string_view op, implementation;
};

// RECURVE_KERNELS: "op=implementation,...". The text lives as long as the variable stands.
std::vector<Forced> forced_kernels() {
  std::vector<Forced> all;
  const char* variable = std::getenv("RECURVE_KERNELS");
  std::string_view rest = variable == nullptr ? "" : variable;
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      throw std::runtime_error(fmt::format(
          "RECURVE_KERNELS has '{}'; wanted are pairs 'op=implementation' with commas between",
          item));
    }
    all.push_back({item.substr(0, equals), item.substr(equals + 1)});
  }
  return all;
}

constexpr std::string_view kAllOps = "all";

// Puts the implementation of that op, or of all ops that have it, in `kernels`: from the last of
// the tables that has it.
void force(Kernels& kernels, const Forced& forced, const std::vector<Kernels>& tables) {
  bool op_known = forced.op == kAllOps, done = false;
  std::string ops(kAllOps);
  std::set<std::string> implementations;
  Kernels::for_each_op([&](const char* name, auto member) {
    ops += fmt::format(", {}", name);
    if (forced.op != kAllOps && forced.op != name) return;
    op_known = true;
    for (const Kernels& table : tables) {
      const std::string_view found = (table.*member).implementation;
      implementations.emplace(found);
      if (forced.implementation != found && forced.implementation != short_name(found)) continue;
      kernels.*member = table.*member;
      done = true;
    }
  });
  if (!op_known) {
    throw std::runtime_error(
        fmt::format("RECURVE_KERNELS names the op '{}'; there are: {}", forced.op, ops));
  }
  if (!done) {
    throw std::runtime_error(
        fmt::format("RECURVE_KERNELS wants '{}' for the op '{}'; this device has: {}",
                    forced.implementation, forced.op, fmt::join(implementations, ", ")));
  }
}

// The last of `tables`, with what RECURVE_KERNELS asks for.
Kernels choose_kernels(const std::vector<Kernels>& tables) {
  Kernels kernels = tables.back();
  for (const Forced& forced : forced_kernels()) force(kernels, forced, tables);
  return kernels;
}

#if RECURVE_CPU
std::unique_ptr<Backend> make_cpu_backend(int threads, ActivationType narrowest) {
  constexpr std::string_view kCpu = "cpu/";
  std::string_view isa;
  for (const auto& [op, implementation] : forced_kernels()) {
    if (op == kAllOps && implementation.starts_with(kCpu)) isa = implementation.substr(4);
  }
  cpu::limit_isa(isa);
  const int count = threads > 0 ? threads : cpu::ThreadPool::default_threads();
  Kernels kernels = reference::table();
  cpu::fill(kernels);
  Kernels rounding = kernels;
  const std::string types = cpu::put_products(rounding, narrowest);
  Kernels chosen = choose_kernels({reference::table(), kernels, rounding});
  const bool amx = std::string_view(chosen.linear.implementation).starts_with("cpu/amx");
  std::string name = fmt::format("cpu, {} {}, {}{}", count, count == 1 ? "thread" : "threads",
                                 cpu::isa(), amx ? ", amx" : "");
  if (narrowest != ActivationType::kF32) name += ", activations in " + types;
  return std::make_unique<CpuBackend>(std::move(name), chosen, count);
}
#endif

// Copies of so many bytes are made by two threads.
constexpr size_t kTwoThreadsFrom = size_t{16} << 20;

// Those from `begin` up to `end` of all pieces' bytes, one piece behind the other.
void copy_bytes(std::span<const CopyPiece> pieces, size_t begin, size_t end) {
  size_t at = 0;
  for (const CopyPiece& piece : pieces) {
    const size_t first = std::clamp(begin, at, at + piece.bytes) - at;
    const size_t bytes = std::clamp(end, at, at + piece.bytes) - at - first;
    at += piece.bytes;
    if (bytes == 0) continue;
    std::byte* const to = static_cast<std::byte*>(piece.to) + first;
    if (piece.from != nullptr) {
      streaming_copy(to, static_cast<const std::byte*>(piece.from) + first, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
}

}  // namespace

std::string arithmetic_of(std::string_view rest) {
  std::string arithmetic;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(", "));
    rest.remove_prefix(std::min(rest.size(), part.size() + 2));
    if (part.ends_with(" thread") || part.ends_with(" threads") || part.starts_with("cuda:")) {
      continue;
    }
    arithmetic += fmt::format("{}{}", arithmetic.empty() ? "" : ", ", part);
  }
  return arithmetic;
}

std::unique_ptr<Recording> Backend::record(std::function<void()> work, Stream&) {
  return std::make_unique<CallAgain>(std::move(work));
}

size_t Backend::free_memory() const { return free_host_memory(); }

std::unique_ptr<Event> Backend::make_event() { return std::make_unique<PassedEvent>(); }

// Two threads have more of the memory's bandwidth than one, and free their processors sooner. If no
// thread can be started, the caller does it all.
void Backend::copy_pieces(std::span<const CopyPiece> pieces, Stream&) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  const size_t half = bytes < kTwoThreadsFrom ? bytes : bytes / 2;
  std::future<void> other;
  try {
    if (half < bytes) {
      other = std::async(std::launch::async, [&] { copy_bytes(pieces, half, bytes); });
    }
  } catch (const std::system_error&) {
    return copy_bytes(pieces, 0, bytes);
  }
  copy_bytes(pieces, 0, half);
  if (other.valid()) other.get();
}

HostMemory Backend::take_host_memory(size_t bytes) {
  constexpr std::align_val_t kAlign{kAlignment};
  return {static_cast<std::byte*>(::operator new(bytes, kAlign)),
          [](std::byte* memory) { ::operator delete(memory, kAlign); }};
}

std::unique_ptr<Backend> make_backend(std::string_view device, int threads) {
  return make_backend(device, threads, ActivationType::kF32);
}

std::unique_ptr<Backend> make_backend(std::string_view device, int threads,
                                      ActivationType narrowest) {
  if (device != "cpu" && narrowest != ActivationType::kF32) {
    throw std::runtime_error(
        fmt::format("activations are rounded on the CPU alone, where that is asked for; device "
                    "'{}' computes as it does: leave it at f32",
                    device));
  }
  if (device == "reference") {
    return std::make_unique<HostBackend>("reference", choose_kernels({reference::table()}));
  }
#if RECURVE_CPU
  if (device == "cpu") return make_cpu_backend(threads, narrowest);
  constexpr std::string_view kCpu = "cpu, reference";
#else
  static_cast<void>(threads);
  constexpr std::string_view kCpu = "reference (cpu needs Highway: install libhwy-dev)";
#endif
#if RECURVE_CUDA
  if (device.starts_with("cuda:")) {
    return cuda::make_backend(device, choose_kernels);
  }
  constexpr std::string_view kCuda = ", cuda:N";
#else
  constexpr std::string_view kCuda = "";
#endif
  throw std::runtime_error(
      fmt::format("no device '{}'; this build has: {}{}", device, kCpu, kCuda));
}

}  // namespace recurve
