// Attention over pages: the reference against the formula in double, every device against the
// reference, and bits that follow from a row and its keys alone.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "kernels/bf16.h"
#include "tests/kernels/paged_attention_golden.h"
#include "tests/support/kernels/row_values.h"

namespace recurve::testing::paged_attention_test {

struct Heads {
  int H, HK, D;
};
const Heads kHeads[] = {{1, 1, 1},   {4, 2, 16}, {3, 3, 5},  {6, 1, 40},  {8, 2, 33},
                        {4, 1, 256}, {5, 1, 80}, {7, 1, 96}, {10, 1, 64}, {2, 1, 128}};

// Keys, values, queries and gates of one session, (tokens, heads, D).
struct Session {
  int tokens;
  Floats q, k, v, gate;
};

Session make_session(std::mt19937_64& random, const Heads& h, int tokens) {
  const auto count = static_cast<size_t>(tokens);
  return {tokens, normal_floats(random, count * h.H * h.D, 2),
          normal_floats(random, count * h.HK * h.D, 1), normal_floats(random, count * h.HK * h.D),
          normal_floats(random, count * h.H * h.D, 3)};
}

// Which tokens of which session a call brings.
struct Piece {
  int session, from, to;
  int32_t slot = 0;  // other than the session's
};

// A pool of pages in the memory of a device, and calls over it.
class Pages {
 public:
  Pages(KernelDevice& device, const Heads& heads, DType dtype, int slots, int most, uint64_t seed)
      : device_(device),
        h_(heads),
        dtype_(dtype),
        most_(most),
        half_(kPageTokens * heads.HK * heads.D * static_cast<int64_t>(size_of(dtype))),
        memory_(device.floats(static_cast<size_t>((slots * most + 1) * 2 * half_ / 4))) {
    std::vector<int32_t> order(static_cast<size_t>(slots * most));
    std::iota(order.begin(), order.end(), 1);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    table_.assign(static_cast<size_t>(most), 0);  // of slot 0
    table_.insert(table_.end(), order.begin(), order.end());
  }

  std::vector<int32_t>& table() { return table_; }
  Floats memory() const { return memory_.read(); }

  // Appends and attends -> outputs of the rows, (rows, H, D). slots: of the sessions.
  Floats call(const std::vector<Session>& sessions, const std::vector<int32_t>& slots,
              const std::vector<Piece>& pieces, bool gated) {
    const int q_width = h_.H * h_.D * (gated ? 2 : 1);
    Floats q, k, v;
    std::vector<int32_t> begin = {0}, slot, position;
    int longest = 0;
    const auto add = [](Floats& to, const Floats& from, int width, const Piece& piece, int gap) {
      for (int t = piece.from; t < piece.to; ++t) {
        to.insert(to.end(), from.begin() + t * width, from.begin() + (t + 1) * width);
        to.insert(to.end(), gap, NAN);
      }
    };
    for (const Piece& piece : pieces) {
      const Session& s = sessions[piece.session];
      add(q, gated ? with_gates(s) : s.q, q_width, piece, 3);
      add(k, s.k, h_.HK * h_.D, piece, 2);
      add(v, s.v, h_.HK * h_.D, piece, 4);
      for (int t = piece.from; t < piece.to; ++t) position.push_back(t);
      begin.push_back(static_cast<int32_t>(position.size()));
      slot.push_back(piece.slot != 0 ? piece.slot : slots[piece.session]);
      longest = std::max(longest, piece.to - piece.from);
    }
    const auto rows = static_cast<int>(position.size());
    const auto qs = device_.array(q), ks = device_.array(k), vs = device_.array(v);
    const auto begins = device_.array(begin), slot_ids = device_.array(slot),
               positions = device_.array(position), tables = device_.array(table_);
    const auto out = device_.floats(static_cast<size_t>(rows) * h_.H * h_.D);
    const Ragged seqs{.num_seqs = static_cast<int>(slot.size()),
                      .rows = rows,
                      .max_len = longest,
                      .begin = begins.data(),
                      .slot = slot_ids.data()};
    const auto paged = [&](int64_t at) {
      return PagedData{.data = reinterpret_cast<std::byte*>(memory_.data()) + at,
                       .dtype = dtype_,
                       .page_bytes = 2 * half_,
                       .table = tables.data(),
                       .most = most_,
                       .pages = static_cast<int32_t>(table_.size()) - most_ + 1};
    };
    device_.kernels().append({.seqs = seqs,
                              .HK = h_.HK,
                              .D = h_.D,
                              .k_stride = h_.HK * h_.D + 2,
                              .v_stride = h_.HK * h_.D + 4,
                              .k = ks.data(),
                              .v = vs.data(),
                              .position = positions.data(),
                              .keys = paged(0),
                              .values = paged(half_)},
                             *device_.stream);
    device_.kernels().paged_attention({.seqs = seqs,
                                       .H = h_.H,
                                       .HK = h_.HK,
                                       .D = h_.D,
                                       .scale = 1 / std::sqrt(static_cast<float>(h_.D)),
                                       .q_stride = q_width + 3,
                                       .q = qs.data(),
                                       .position = positions.data(),
                                       .keys = paged(0),
                                       .values = paged(half_),
                                       .o = out.data(),
                                       .gate = gated ? qs.data() + h_.D : nullptr,
                                       .gate_stride = q_width + 3,
                                       .gate_head_stride = 2 * h_.D,
                                       .q_head_stride = gated ? 2 * h_.D : 0},
                                      *device_.stream);
    EXPECT_TRUE(out.guards_intact());
    EXPECT_TRUE(memory_.guards_intact());
    return out.read();
  }

 private:
  // Each head of queries with its gate behind it.
  Floats with_gates(const Session& s) const {
    Floats both;
    for (size_t at = 0; at < s.q.size(); at += h_.D) {
      both.insert(both.end(), s.q.begin() + at, s.q.begin() + at + h_.D);
      both.insert(both.end(), s.gate.begin() + at, s.gate.begin() + at + h_.D);
    }
    return both;
  }

  KernelDevice& device_;
  const Heads h_;
  const DType dtype_;
  const int most_;
  const int64_t half_;
  DeviceArray<float> memory_;
  std::vector<int32_t> table_;
};

float stored(DType dtype, float value) {
  return dtype == DType::kF32 ? value : bf16_to_f32(f32_to_bf16(value));
}

Floats exact(const Heads& h, const Session& s, DType dtype, bool gated) {
  Floats out;
  for (int row = 0; row < s.tokens; ++row) {
    for (int head = 0; head < h.H; ++head) {
      const int shared = head / (h.H / h.HK);
      std::vector<double> scores, o(h.D);
      for (int x = 0; x <= row; ++x) {
        double product = 0;
        for (int d = 0; d < h.D; ++d) {
          product += double{s.q[(row * h.H + head) * h.D + d]} *
                     stored(dtype, s.k[(x * h.HK + shared) * h.D + d]);
        }
        scores.push_back(product / std::sqrt(double{static_cast<float>(h.D)}));
      }
      const double largest = *std::ranges::max_element(scores);
      double sum = 0;
      for (int x = 0; x <= row; ++x) {
        const double weight = std::exp(scores[x] - largest);
        sum += weight;
        for (int d = 0; d < h.D; ++d) {
          o[d] += weight * stored(dtype, s.v[(x * h.HK + shared) * h.D + d]);
        }
      }
      for (int d = 0; d < h.D; ++d) {
        const double gate = gated ? exact_sigmoid(s.gate[(row * h.H + head) * h.D + d]) : 1;
        out.push_back(static_cast<float>(o[d] / sum * gate));
      }
    }
  }
  return out;
}

// Scores of some tens, whose roundings the exponential takes with it.
constexpr Tolerance kAttended{.absolute = 2e-5, .relative = 1e-4};

TEST(PagedAttentionReference, IsTheFormula) {
  KernelDevice device("reference");
  std::mt19937_64 random(2);
  for (const Heads& h : kHeads) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::vector<Session> sessions = {make_session(random, h,
                                                          h.D > 60   ? 70
                                                          : h.D > 16 ? 270
                                                                     : 530)};
      for (const bool gated : {false, true}) {
        Pages pages(device, h, dtype, 1, 9, 3);
        EXPECT_TRUE(close(pages.call(sessions, {1}, {{0, 0, sessions[0].tokens}}, gated),
                          exact(h, sessions[0], dtype, gated), kAttended))
            << h.H << " " << h.HK << " " << h.D << " " << name_of(dtype);
      }
    }
  }
}

// paged_attention_golden.py draws the same rows.
void expect_pytorchs(KernelDevice& device) {
  for (const AttentionGolden& golden : kAttentionGoldens) {
    uint32_t state = 1;
    const auto draw = [&](int width, float factor) {
      Floats values(static_cast<size_t>(golden.L) * width);
      for (float& value : values) {
        state = state * 1664525u + 1013904223u;
        value = factor * (static_cast<float>(state >> 16) / 32768.0f - 1);
      }
      return values;
    };
    const Heads h{golden.H, golden.HK, golden.D};
    Session session{golden.L, draw(h.H * h.D, 4), draw(h.HK * h.D, 2), draw(h.HK * h.D, 1), {}};
    Pages pages(device, h, DType::kF32, 1, 9, 6);
    const Floats all = pages.call({session}, {1}, {{0, 0, golden.L}}, false);
    Floats found;
    for (const int row : golden.rows) {
      const auto at = all.begin() + static_cast<ptrdiff_t>(row) * h.H * h.D;
      found.insert(found.end(), at, at + h.H * h.D);
    }
    EXPECT_TRUE(close(found, golden.o, {.absolute = 4e-6, .relative = 4e-6})) << golden.D;
  }
}

TEST(PagedAttentionReference, IsPyTorchs) {
  KernelDevice device("reference");
  expect_pytorchs(device);
}

class PagedAttentionTest : public DeviceTest {};

TEST_P(PagedAttentionTest, IsPyTorchs) {
  KernelDevice device = make_device();
  expect_pytorchs(device);
}

// To the bit, whatever the values are.
TEST_P(PagedAttentionTest, StoresWhatTheReferenceStores) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(11);
  for (const Heads& h : kHeads) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<Session> sessions = {make_session(random, h, 131), make_session(random, h, 131)};
      sessions[0].k[5] = INFINITY, sessions[0].v[7] = NAN, sessions[1].k[8] = 1e-41f;
      sessions[1].v[9] = 3.4e38f;
      Pages mine(device, h, dtype, 2, 3, 4), theirs(reference, h, dtype, 2, 3, 4);
      for (Pages* pages : {&mine, &theirs}) {
        pages->call(sessions, {2, 1}, {{1, 0, 3}, {0, 0, 131}}, false);
        pages->call(sessions, {2, 1}, {{0, 130, 131}, {1, 3, 4}}, false);
        pages->call(sessions, {2, 1}, {{1, 4, 129}}, false);
      }
      const Floats found = mine.memory(), wanted = theirs.memory();
      EXPECT_EQ(std::memcmp(found.data(), wanted.data(), found.size() * sizeof(float)), 0)
          << h.D << " " << name_of(dtype);
    }
  }
}

// What a row does not see does not change it, whatever it is, even where both are in one tile.
void expect_unseen_rows_change_nothing(KernelDevice& device, const Heads& h) {
  std::mt19937_64 random(12);
  std::vector<Session> sessions = {make_session(random, h, 263)};
  Pages one(device, h, DType::kBF16, 1, 5, 1), other(device, h, DType::kBF16, 1, 5, 1);
  const Floats wanted = one.call(sessions, {1}, {{0, 0, 260}}, true);
  const auto row = static_cast<size_t>(h.HK) * h.D;
  std::fill_n(sessions[0].v.begin() + static_cast<ptrdiff_t>(260 * row), row, INFINITY);
  std::fill_n(sessions[0].k.begin() + static_cast<ptrdiff_t>(261 * row), row, NAN);
  Floats found = other.call(sessions, {1}, {{0, 0, 263}}, true);
  found.resize(wanted.size());
  EXPECT_TRUE(bit_equal(found, wanted)) << h.D;
}

TEST_P(PagedAttentionTest, LaterRowsChangeNothing) {
  KernelDevice device = make_device();
  for (const Heads& h : kHeads) expect_unseen_rows_change_nothing(device, h);
}

// Long enough for threads to share one row: the bits are those of a prompt on one thread.
TEST_P(PagedAttentionTest, ThreadsChangeNothing) {
  KernelDevice device = make_device(), one(device_under_test().device, 1);
  std::mt19937_64 random(13);
  for (const Heads& h : {Heads{8, 2, 40}, {3, 1, 33}}) {
    const int tokens = 2600;
    const std::vector<Session> sessions = {make_session(random, h, tokens)};
    Pages whole(one, h, DType::kBF16, 1, 41, 1), cut(device, h, DType::kBF16, 1, 41, 2);
    const Floats wanted = whole.call(sessions, {1}, {{0, 0, tokens}}, false);
    Floats found = cut.call(sessions, {1}, {{0, 0, 2597}}, false);
    for (const Piece& piece : {Piece{0, 2597, 2598}, Piece{0, 2598, tokens}}) {
      const Floats more = cut.call(sessions, {1}, {piece}, false);
      found.insert(found.end(), more.begin(), more.end());
    }
    EXPECT_TRUE(bit_equal(found, wanted)) << h.D;
  }
}

TEST_P(PagedAttentionTest, MatchesTheReference) {
  KernelDevice reference("reference"), device = make_device();
  std::mt19937_64 random(7);
  for (const Heads& h : kHeads) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::vector<Session> sessions = {make_session(random, h, 300),
                                             make_session(random, h, 65)};
      const std::vector<Piece> pieces = {{0, 0, 300}, {1, 0, 65}};
      Pages mine(device, h, dtype, 3, 5, 4), theirs(reference, h, dtype, 3, 5, 5);
      EXPECT_TRUE(close(mine.call(sessions, {2, 1}, pieces, true),
                        theirs.call(sessions, {3, 2}, pieces, true), kAttended))
          << h.H << " " << h.HK << " " << h.D << " " << name_of(dtype);
    }
  }
}

// However a text is cut between calls, wherever its pages lie and whatever runs concurrently.
void expect_bits_of_rows(KernelDevice& device, const Heads& h, DType dtype) {
  std::mt19937_64 random(8);
  const std::vector<Session> sessions = {make_session(random, h, 600), make_session(random, h, 90)};
  const size_t width = h.H * h.D;
  Pages whole(device, h, dtype, 2, 10, 1);
  const Floats wanted = whole.call(sessions, {1, 2}, {{0, 0, 600}}, true);
  Pages cut(device, h, dtype, 2, 10, 9);
  Floats found;
  const int cuts[] = {0, 1, 2, 63, 64, 200, 256, 257, 258, 511, 513, 599, 600};
  for (size_t c = 0; c + 1 < std::size(cuts); ++c) {
    const int other = static_cast<int>(c) * 7;
    const Floats both =
        cut.call(sessions, {2, 1}, {{1, other, other + 6}, {0, cuts[c], cuts[c + 1]}}, true);
    found.insert(found.end(), both.begin() + static_cast<ptrdiff_t>(6 * width), both.end());
  }
  EXPECT_TRUE(bit_equal(found, wanted)) << h.H << " " << h.D << " " << name_of(dtype);
}

TEST_P(PagedAttentionTest, BitsFollowFromTheRowAndItsKeys) {
  KernelDevice device = make_device();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_bits_of_rows(device, {6, 2, 24}, dtype);
  }
}

// Steps of several sessions at once, of one token and of two, at both sides of multiples of
// kAttentionPart: where these have a kernel to themselves.
TEST_P(PagedAttentionTest, StepsHaveTheBitsOfPrompts) {
  KernelDevice device = make_device();
  std::mt19937_64 random(15);
  for (const Heads& h : {Heads{8, 2, 64}, Heads{8, 1, 128}, Heads{8, 2, 256}, Heads{10, 1, 256}}) {
    const int tokens[] = {300, 256, 257, 3};
    std::vector<Session> sessions;
    std::vector<Piece> prompts, lasts, pairs;
    for (int s = 0; s < 4; ++s) {
      sessions.push_back(make_session(random, h, tokens[s]));
      prompts.push_back({s, 0, tokens[s]});
      lasts.push_back({s, tokens[s] - 1, tokens[s]});
      if (s != 1) pairs.push_back({s, tokens[s] - 2, tokens[s]});
    }
    Pages pages(device, h, DType::kBF16, 4, 5, 1);
    const Floats wanted = pages.call(sessions, {1, 2, 3, 4}, prompts, true);
    const auto rows_of = [&](const std::vector<Piece>& pieces) {
      Floats rows;
      for (const Piece& piece : pieces) {
        const int before = std::accumulate(tokens, tokens + piece.session, 0);
        const auto at = wanted.begin() + ptrdiff_t{before} * h.H * h.D;
        rows.insert(rows.end(), at + ptrdiff_t{piece.from} * h.H * h.D,
                    at + ptrdiff_t{piece.to} * h.H * h.D);
      }
      return rows;
    };
    for (const auto& pieces : {lasts, pairs}) {
      const Floats found = pages.call(sessions, {1, 2, 3, 4}, pieces, true);
      EXPECT_TRUE(bit_equal(found, rows_of(pieces))) << h.H << " " << h.D;
    }
  }
}

// A fork has the pages of the session before it.
TEST_P(PagedAttentionTest, PagesMayBeShared) {
  KernelDevice device = make_device();
  std::mt19937_64 random(9);
  const Heads h{4, 2, 16};
  std::vector<Session> sessions = {make_session(random, h, 150), make_session(random, h, 150)};
  for (auto [to, from] : {std::pair(&Session::k, 0), {&Session::v, 0}}) {
    std::copy_n((sessions[0].*to).begin(), 128 * h.HK * h.D, (sessions[1].*to).begin());
  }
  Pages apart(device, h, DType::kBF16, 2, 3, 1), shared(device, h, DType::kBF16, 2, 3, 1);
  const Floats wanted = apart.call(sessions, {1, 2}, {{0, 0, 150}, {1, 0, 150}}, false);
  auto& table = shared.table();
  table[2 * 3] = table[3];
  table[2 * 3 + 1] = table[3 + 1];
  shared.call(sessions, {1, 2}, {{0, 0, 150}}, false);
  const Floats found = shared.call(sessions, {1, 2}, {{1, 128, 150}}, false);
  EXPECT_TRUE(bit_equal(found, std::span(wanted).last(found.size())));
}

// Sequences that have ended have slot 0, whatever their position is.
void expect_zeros_of_slot_zero(KernelDevice& device, const Heads& h, DType dtype, int rows) {
  std::mt19937_64 random(10);
  const std::vector<Session> sessions = {make_session(random, h, 400)};
  Pages pages(device, h, dtype, 1, 2, 1);  // of 128 tokens
  const Floats found = pages.call(sessions, {0}, {{0, 400 - rows, 400}}, false);
  EXPECT_EQ(found, Floats(found.size(), 0.0f));
}

TEST_P(PagedAttentionTest, SlotZeroIsNeitherReadNorWritten) {
  KernelDevice device = make_device();
  expect_zeros_of_slot_zero(device, {2, 1, 8}, DType::kF32, 10);
}

RECURVE_ON_EACH_DEVICE(PagedAttentionTest);
RECURVE_ON_CUDA(PagedAttentionTest);

class PagedAttentionOnGpuTest : public DeviceTest {};

// So many heads that prompts of some hundred rows have tiles for most multiprocessors, and large
// tiles attend to them; smaller tiles or steps to some rows.
const Heads kManyHeads[] = {{64, 16, 64}, {64, 16, 128}, {64, 16, 256}};

TEST_P(PagedAttentionOnGpuTest, BitsFollowFromTheRowAndItsKeys) {
  KernelDevice device = make_device();
  for (const Heads& h : {Heads{8, 2, 64}, Heads{8, 1, 128}, Heads{8, 2, 256}}) {
    expect_bits_of_rows(device, h, DType::kBF16);
  }
  for (const Heads& h : kManyHeads) expect_bits_of_rows(device, h, DType::kBF16);
}

TEST_P(PagedAttentionOnGpuTest, LaterRowsChangeNothing) {
  KernelDevice device = make_device();
  for (const Heads& h : kManyHeads) expect_unseen_rows_change_nothing(device, h);
}

TEST_P(PagedAttentionOnGpuTest, SlotZeroIsNeitherReadNorWritten) {
  KernelDevice device = make_device();
  for (const Heads& h : kManyHeads) expect_zeros_of_slot_zero(device, h, DType::kBF16, 399);
}

// More parts than the memory of a stream holds. All sessions have the same pages, into which they
// store the same token.
TEST_P(PagedAttentionOnGpuTest, StepsHaveTheBitsOfPrompts) {
  KernelDevice device = make_device();
  std::mt19937_64 random(16);
  const Heads h{16, 1, 256};
  const int tokens = 2048, count = 520;
  const std::vector<Session> sessions = {make_session(random, h, tokens)};
  Pages pages(device, h, DType::kBF16, 1, 32, 1);
  Floats wanted = pages.call(sessions, {1}, {{0, 0, tokens}}, false);
  wanted.erase(wanted.begin(), wanted.end() - h.H * h.D);
  const std::vector<int32_t> row(pages.table().end() - 32, pages.table().end());
  std::vector<Piece> pieces;
  for (int slot = 1; slot <= count; ++slot) {
    if (slot > 1) pages.table().insert(pages.table().end(), row.begin(), row.end());
    pieces.push_back({0, tokens - 1, tokens, slot});
  }
  const Floats found = pages.call(sessions, {1}, pieces, false);
  for (int s = 0; s < count; ++s) {
    const auto mine = std::span(found).subspan(static_cast<size_t>(s) * wanted.size());
    ASSERT_TRUE(bit_equal(mine.first(wanted.size()), wanted)) << s;
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PagedAttentionOnGpuTest);
RECURVE_ON_CUDA(PagedAttentionOnGpuTest);

// A page that a session does not have is a bug of the caller: it is never read or written.
TEST(PagedAttentionDeathTest, PagesThatASessionDoesNotHaveEndTheProcess) {
  std::mt19937_64 random(14);
  const Heads h{2, 1, 8};
  const std::vector<Session> sessions = {make_session(random, h, 130)};
  for (const std::string& name : host_devices()) {
    KernelDevice device(name);
    for (const int32_t page : {-1, 0, 5}) {
      Pages pages(device, h, DType::kBF16, 2, 2, 1);  // pages 1 to 4
      pages.table()[3] = page;
      EXPECT_DEATH(pages.call(sessions, {1}, {{0, 0, 70}}, false), "CHECK failed") << page;
    }
    Pages pages(device, h, DType::kBF16, 2, 2, 1);
    EXPECT_DEATH(pages.call(sessions, {1}, {{0, 0, 129}}, false), "CHECK failed");
  }
}

}  // namespace recurve::testing::paged_attention_test
