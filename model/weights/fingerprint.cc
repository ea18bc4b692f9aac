#include "model/weights/fingerprint.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <thread>

#include "kernels/host.h"

namespace recurve {
namespace {

Hash128 hash_of(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

std::string hex(const Hash128& hash) {
  return fmt::format("{:016x}{:016x}", hash.first, hash.second);
}

size_t blocks_in(size_t bytes) { return (bytes + TensorHashes::kBlock - 1) / TensorHashes::kBlock; }

}  // namespace

std::string fingerprint_of(std::span<const std::string> texts) {
  std::string all;
  for (const std::string& text : texts) {
    all += fmt::format("{} {} ", text.size(), hex(hash_of(text.data(), text.size())));
  }
  return hex(hash_of(all.data(), all.size()));
}

std::span<Hash128> TensorHashes::add(const TensorView& view) {
  if (left_out_ || view.some_rows) return {};
  const auto [entry, is_new] = entries_.try_emplace(std::string(view.name));
  if (!is_new) return {};
  entry->second.type_and_shape = type_and_shape(view);
  entry->second.blocks.resize(blocks_in(view.bytes));
  return entry->second.blocks;
}

std::vector<std::string> TensorHashes::lines() const {
  std::vector<std::string> lines;
  for (const auto& [name, entry] : entries_) {
    const Hash128 hash = hash_of(entry.blocks.data(), entry.blocks.size() * sizeof(Hash128));
    lines.push_back(fmt::format("{} {} {}", name, entry.type_and_shape, hex(hash)));
  }
  return lines;
}

void hash_blocks(std::span<const std::byte> bytes, std::span<Hash128> blocks) {
  constexpr size_t kMostThreads = 4;  // of memory's rate, more than files are read with
  static const auto cores = static_cast<size_t>(host_threads());
  const size_t threads = std::min({kMostThreads, cores, blocks.size()});
  const auto hash_every = [&](size_t first) {
    for (size_t b = first; b < blocks.size(); b += threads) {
      const size_t begin = b * TensorHashes::kBlock;
      const std::span part =
          bytes.subspan(begin, std::min(TensorHashes::kBlock, bytes.size() - begin));
      blocks[b] = hash_of(part.data(), part.size());
    }
  };
  std::vector<std::jthread> others;
  for (size_t t = 1; t < threads; ++t) others.emplace_back(hash_every, t);
  if (threads > 0) hash_every(0);
}

}  // namespace recurve
