#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/check.h"
#include "kernels/ops/lora.h"

// The rows of a step that have adapters, as arguments of a kernel: by tiles of rows that have one
// adapter. More than a table has take several launches.
namespace recurve::cuda::sm80::lora {

struct Part {
  const void *A, *B;
  int32_t first, N;
  float scale;
  uint16_t r;
  bool bf16, aligned;  // aligned: A begins at a multiple of 16 bytes

#ifdef __CUDACC__
  __host__ __device__
#endif
      int
      fours() const {  // ranks by fours
    return (r + 3) / 4;
  }
};

template <int kRows>
struct Tile {
  int32_t row[kRows];
  uint8_t rows;          // that there are
  uint8_t first, parts;  // of the table's parts, those of the tile's adapter
};

// Few tiles and parts make a launch's arguments short.
template <int kTileRows, bool kSmall>
struct Table {
  static constexpr int kRows = kTileRows, kParts = kSmall ? 36 : 96, kTiles = kSmall ? 20 : 64;
  Part part[kParts];
  Tile<kRows> tile[kTiles];
};

// The rows of args.linear to which no part adds anything.
inline std::vector<int32_t> other_rows(const LoraArgs& args) {
  std::vector<bool> has_parts(static_cast<size_t>(args.linear->rows));
  for (const LoraRows& group : args.groups) {
    if (args.parts_of(group).empty()) continue;
    for (const int32_t row : group.rows) has_parts[static_cast<size_t>(row)] = true;
  }
  std::vector<int32_t> others;
  for (int32_t row = 0; row < args.linear->rows; ++row) {
    if (!has_parts[static_cast<size_t>(row)]) others.push_back(row);
  }
  return others;
}

// What a table with so many rows a tile has to have room for.
template <int kRows>
struct TableSize {
  size_t parts = 0, tiles = 0;

  // others: rows without parts that are in the table too.
  explicit TableSize(const LoraArgs& args, std::span<const int32_t> others = {})
      : tiles(ceil_div(others.size(), kRows)) {
    for (const LoraRows& group : args.groups) {
      if (args.parts_of(group).empty()) continue;
      parts += args.parts_of(group).size();
      tiles += ceil_div(group.rows.size(), kRows);
    }
  }
  // Whether one table has all of it: a small one, or one of the others.
  template <bool kSmall>
  bool fits() const {
    using One = Table<kRows, kSmall>;
    return parts <= One::kParts && tiles <= One::kTiles;
  }
};

// The most shares that a tile's parts are cut into, of up to so many fours of ranks of one part.
template <typename AnyTable>
int most_shares(const AnyTable& table, int tiles, int fours) {
  int most = 0;
  for (int t = 0; t < tiles; ++t) {
    int shares = 0;
    for (int p = 0; p < table.tile[t].parts; ++p) {
      shares += ceil_div(table.part[table.tile[t].first + p].fours(), fours);
    }
    most = std::max(most, shares);
  }
  return most;
}

// What shrink leaves at LoraArgs::inner for a layer that ends with it (LoraArgs::joined): a table's
// parts, then its tiles, and from a multiple of 16 bytes on A x, (rows, inner_floats()).
constexpr int kJoinedTileRows = 4;
struct Joined : TableSize<kJoinedTileRows> {
  using TableSize::TableSize;

  int64_t table_bytes() const {
    const size_t bytes = parts * sizeof(Part) + tiles * sizeof(Tile<kJoinedTileRows>);
    return static_cast<int64_t>((bytes + 15) / 16 * 16);
  }
};

// Fills a table with one group after the other.
template <typename AnyTable, typename Launch>
class Filler {
 public:
  explicit Filler(const Launch& launch) : launch_(launch) {}

  void add(std::span<const LoraPart> parts, std::span<const int32_t> rows) {
    constexpr int kRows = AnyTable::kRows;
    CHECK(parts.size() <= AnyTable::kParts);
    if (parts_ + parts.size() > AnyTable::kParts) flush();
    size_t first = add_parts(parts);
    for (size_t at = 0; at < rows.size(); at += kRows) {
      if (tiles_ == AnyTable::kTiles) {
        flush();
        first = add_parts(parts);
      }
      Tile<kRows>& tile = table_.tile[tiles_++];
      const size_t count = std::min<size_t>(kRows, rows.size() - at);
      std::copy_n(rows.begin() + static_cast<ptrdiff_t>(at), count, tile.row);
      tile.rows = static_cast<uint8_t>(count);
      tile.first = static_cast<uint8_t>(first);
      tile.parts = static_cast<uint8_t>(parts.size());
    }
  }
  void flush() {
    if (tiles_ > 0) launch_(table_, static_cast<int>(parts_), tiles_);
    tiles_ = 0;
    parts_ = 0;
  }

 private:
  size_t add_parts(std::span<const LoraPart> parts) {
    const size_t first = parts_;
    for (const LoraPart& part : parts) {
      CHECK(part.r <= kMostLoraRank);
      table_.part[parts_++] = {.A = part.A,
                               .B = part.B,
                               .first = static_cast<int32_t>(part.first),
                               .N = static_cast<int32_t>(part.N),
                               .scale = part.scale,
                               .r = static_cast<uint16_t>(part.r),
                               .bf16 = part.dtype == DType::kBF16,
                               .aligned = reinterpret_cast<uintptr_t>(part.A) % 16 == 0};
    }
    return first;
  }

  const Launch& launch_;
  AnyTable table_ = {};
  size_t parts_ = 0;
  int tiles_ = 0;
};

// Calls launch(table, parts, tiles) for all rows of groups that have parts, and for the rows
// `others` without any.
template <typename AnyTable, typename Launch>
void for_tables(const LoraArgs& args, std::span<const int32_t> others, const Launch& launch) {
  Filler<AnyTable, Launch> filler(launch);
  for (const LoraRows& group : args.groups) {
    if (!args.parts_of(group).empty()) filler.add(args.parts_of(group), group.rows);
  }
  filler.add({}, others);
  filler.flush();
}

}  // namespace recurve::cuda::sm80::lora
