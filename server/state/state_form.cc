#include "server/state/state_form.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/check.h"
#include "server/state/state_values.h"
#include "server/state/written_header.h"

namespace recurve {
namespace {

// Read in one go: as much as a core's cache holds, so that checksums find it there.
constexpr size_t kRead = size_t{1} << 18;
// States from so many bytes on are read by two threads, in parts.
constexpr size_t kTwoThreads = size_t{16} << 20, kPart = size_t{1} << 20;
// Data of so many bytes begins on a multiple of kBlock.
constexpr size_t kAligned = size_t{1} << 20, kBlock = 4096;

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

template <typename T>
void put(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Whether data that comes in spans of any length is what the checksums are of.
class DataCheck {
 public:
  explicit DataCheck(std::vector<Summed> of) : of_(std::move(of)) { XXH3_64bits_reset(&sum_); }

  void add(std::span<const std::byte> data) {
    while (!data.empty() && at_ < of_.size()) {
      const auto part = data.first(std::min<uint64_t>(data.size(), of_[at_].bytes - added_));
      XXH3_64bits_update(&sum_, part.data(), part.size());
      added_ += part.size();
      data = data.subspan(part.size());
      if (added_ == of_[at_].bytes) end_one();
    }
  }
  // To be called once all has come. Throws StateError.
  void finish() {
    while (at_ < of_.size()) end_one();
    if (!bad_) return;
    refuse_damaged(fmt::format("the checksum of its piece \"{}\" differs", *bad_));
  }

 private:
  void end_one() {
    if (XXH3_64bits_digest(&sum_) != of_[at_].sum && !bad_) bad_ = of_[at_].name;
    XXH3_64bits_reset(&sum_);
    ++at_;
    added_ = 0;
  }
  const std::vector<Summed> of_;
  XXH3_state_t sum_;
  size_t at_ = 0;
  uint64_t added_ = 0;
  std::optional<std::string> bad_;
};

bool same(const StateArray& a, const StateArray& b) {
  return a.name == b.name && a.layer == b.layer && a.dtype == b.dtype && a.shape == b.shape &&
         a.per_token() == b.per_token();
}

void check_fits(const StateHeader& found, const StateHeader& wanted) {
  const auto differs = [](const char* what, const auto& theirs, const auto& ours) {
    refuse_state(EndReason::kOtherModel,
                 fmt::format("{} is {} in the state, and {} in this server", what, theirs, ours));
  };
  if (found.model != wanted.model) differs("the model", found.model, wanted.model);
  if (found.weights != wanted.weights)
    differs("the type of the weights", found.weights, wanted.weights);
  if (found.chunk != wanted.chunk) differs("the chunk of prompts", found.chunk, wanted.chunk);
  const auto &a = found.layout.arrays, &b = wanted.layout.arrays;
  if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) {
    refuse_state(EndReason::kOtherModel,
                 "its arrays have other types or shapes than this server's states: check --state "
                 "and --model");
  }
}

// Where the arrays of a written state belong, in its order; what is next to each other here too is
// in one span. rooms: of these pieces of `wanted`, whose arrays are those of the written state.
StateRooms in_written_order(const std::vector<StatePieceLayout>& written, const StateLayout& wanted,
                            const std::vector<StatePieceLayout>& pieces, const StateRooms& rooms) {
  const StateRooms arrays = spans_of_arrays(wanted, pieces, rooms);
  std::map<std::string_view, std::span<std::byte>> pages;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (pieces[p].page) pages[pieces[p].name] = rooms[p];
  }
  StateRooms order;
  for (const StatePieceLayout& piece : written) {
    if (piece.page) {
      order.push_back(pages.at(piece.name));
      continue;
    }
    for (const size_t a : piece.arrays) {
      const bool follows =
          !order.empty() && order.back().data() + order.back().size() == arrays[a].data();
      if (follows) {
        order.back() = {order.back().data(), order.back().size() + arrays[a].size()};
      } else {
        order.push_back(arrays[a]);
      }
    }
  }
  return order;
}

// Data that two threads read, each whichever part is next. Checksums are added up in order: by
// the thread that has read a part while the other is not adding, of all parts that are there by
// then. So neither waits for the other, and most parts are still in the cache of the adding thread.
class SharedRead {
 public:
  SharedRead(const ReadAt& read, uint64_t begin, std::span<std::byte> to, DataCheck& check)
      : read_(read),
        begin_(begin),
        to_(to),
        check_(check),
        there_((to.size() + kPart - 1) / kPart) {}

  // Throws what reading throws.
  void run() {
    auto other = std::async(std::launch::async, [this] { take_parts(); });
    take_parts();
    other.get();
  }

 private:
  void take_parts() {
    try {
      for (size_t part = next_++; part < there_.size(); part = next_++) {
        read_(begin_ + part * kPart, bytes_of(part));
        add_up(part);
      }
    } catch (...) {
      next_ = there_.size();  // the other one need not go on
      throw;
    }
  }
  void add_up(size_t read) {
    std::unique_lock lock(mutex_);
    there_[read] = true;
    if (adding_) return;
    adding_ = true;
    for (; added_ < there_.size() && there_[added_]; ++added_) {
      const auto part = bytes_of(added_);
      lock.unlock();
      check_.add(part);
      lock.lock();
    }
    adding_ = false;
  }
  std::span<std::byte> bytes_of(size_t part) const {
    return to_.subspan(part * kPart, std::min(kPart, to_.size() - part * kPart));
  }

  const ReadAt& read_;
  const uint64_t begin_;
  const std::span<std::byte> to_;
  DataCheck& check_;
  std::atomic<size_t> next_ = 0;  // to be read
  std::mutex mutex_;              // of all below
  std::vector<bool> there_;       // which parts are
  size_t added_ = 0;              // so many
  bool adding_ = false;
};

// Reads data and adds up its checksums.
class DataReader {
 public:
  DataReader(const ReadAt& read, uint64_t begin, std::vector<Summed> of)
      : read_(read), at_(begin), check_(std::move(of)) {}

  void into(std::span<std::byte> to) {
    if (to.size() >= kTwoThreads) {
      SharedRead(read_, at_, to, check_).run();
      at_ += to.size();
      return;
    }
    while (!to.empty()) {
      const auto part = to.first(std::min(kRead, to.size()));
      read_(at_, part);
      check_.add(part);
      at_ += part.size();
      to = to.subspan(part.size());
    }
  }
  // To be called once all data is read. Throws StateError.
  void check() { check_.finish(); }

 private:
  const ReadAt& read_;
  uint64_t at_;
  DataCheck check_;
};

// The first page of the state among its pieces.
size_t page_index(const StateHeader& header, int64_t page) {
  return header.layout.pieces().size() + static_cast<size_t>(page);
}

// As pieces are written: the largest first, which begins where a disk wants it then.
std::vector<const StatePiece*> in_order_of_size(const StateHeader& header,
                                                const StateImage& image) {
  std::vector<const StatePiece*> order;
  const size_t slot = page_index(header, 0), rest = page_index(header, header.pages_in_base());
  for (size_t p = 0; p < image->size(); ++p) {
    if (p < slot || p >= rest) order.push_back(&(*image)[p]);
  }
  std::ranges::stable_sort(order, std::ranges::greater(), &StatePiece::bytes);
  return order;
}

std::string_view bytes_of(const StatePiece& piece) {
  return {reinterpret_cast<const char*>(piece.data.get()), piece.bytes};
}

Summed summed(const StatePiece& piece) {
  CHECK(piece.data != nullptr);
  return {piece.name, piece.bytes, checksum(piece.data.get(), piece.bytes)};
}

// What is in front of so many bytes of data. aligned: on a multiple of kBlock.
std::string front_of(std::string described, uint64_t data, bool aligned,
                     uint32_t version = kVersionWithoutAdapter) {
  if (aligned) {
    described.append((kBlock - (kStateFixed + described.size()) % kBlock) % kBlock, ' ');
  }
  std::string front(kStateMagic);
  put(version, &front);
  put(static_cast<uint32_t>(described.size()), &front);
  put(data, &front);
  const uint64_t sum = checksum_of(front + described);
  put(sum, &front);
  return front + described;
}

[[noreturn]] void refuse_incomplete() {
  refuse_state(EndReason::kForeignState,
               "some of its pages are in other files: export the session instead");
}

}  // namespace

std::string identity_text(const StateHeader& header) {
  std::string text = fmt::format("{}\n{}\n{}\n", header.model, header.weights, header.chunk);
  for (const StateArray& array : header.layout.arrays) {
    text += fmt::format("{} {} {} {}{}\n", array.name, array.layer, name_of(array.dtype),
                        fmt::join(array.shape, " "), array.per_token() ? " a token" : "");
  }
  return text;
}

void check_front(std::string_view front, const StateHeader& wanted, bool may_have_base) {
  uint32_t header = 0;
  uint64_t data = 0;
  if (front.size() < kStateFixed) return;
  std::memcpy(&header, front.data() + 12, sizeof header);
  std::memcpy(&data, front.data() + 16, sizeof data);
  if (front.size() - kStateFixed < header) return;
  const auto read = [&](uint64_t offset, std::span<std::byte> to) {
    std::memcpy(to.data(), front.data() + offset, to.size());
  };
  const StateHeader found = parse_header(kStateFixed + header + data, read).header;
  check_fits(found, wanted);
  if (found.base.id > 0 && !may_have_base) refuse_incomplete();
}

uint64_t checksum_of(std::string_view bytes) { return checksum(bytes.data(), bytes.size()); }

std::vector<std::string_view> written_parts(const StateHeader& header, const StateImage& image) {
  std::vector<std::string_view> parts;
  for (const StatePiece* piece : in_order_of_size(header, image)) {
    parts.push_back(bytes_of(*piece));
  }
  return parts;
}

StateFrame frame_of(const StateHeader& header, const StateImage& image) {
  StateFrame frame;
  const auto history = std::as_bytes(std::span(header.history));
  const auto answer = std::as_bytes(std::span(header.answer_ids));
  for (const auto part : {history, answer}) {
    frame.back.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  std::vector<Summed> pieces;
  uint64_t state = 0;  // bytes
  for (const StatePiece* piece : in_order_of_size(header, image)) {
    pieces.push_back(summed(*piece));
    state += piece->bytes;
  }
  const size_t in_base = header.layout.page_bytes() * static_cast<size_t>(header.pages_in_base());
  CHECK(state + in_base == header.layout.bytes(header.position));
  pieces.push_back({kHistoryPiece, history.size(), checksum(history.data(), history.size())});
  pieces.push_back({kAnswerPiece, answer.size(), checksum(answer.data(), answer.size())});
  frame.front = front_of(json_of(header, pieces), state + frame.back.size(), state >= kAligned,
                         header.adapter.name.empty() ? kVersionWithoutAdapter : kStateVersion);
  return frame;
}

PageGroup page_group_of(const StateHeader& header, const StateImage& image, int64_t first,
                        uint64_t id) {
  WrittenPages written{.id = id, .base = header.base, .first = first};
  PageGroup group;
  uint64_t bytes = 0;
  const size_t end = page_index(header, header.position / kPageTokens);
  for (size_t p = page_index(header, first); p < end; ++p) {
    written.pages.push_back(summed((*image)[p]));
    group.pages.push_back(bytes_of((*image)[p]));
    bytes += (*image)[p].bytes;
  }
  group.front = front_of(json_of(written), bytes, bytes >= kAligned);
  group.ref.id = id;
  std::memcpy(&group.ref.checksum, group.front.data() + kStateFixed - sizeof(uint64_t),
              sizeof(uint64_t));
  return group;
}

std::string written_tokens(uint64_t id, int64_t first, const std::vector<uint32_t>& tokens) {
  return front_of(json_of({.id = id, .first = first, .tokens = tokens}), 0, /*aligned=*/false);
}

size_t most_token_bytes(int32_t vocab, int64_t tokens) {
  const size_t each = fmt::formatted_size("{},", 4 * static_cast<int64_t>(vocab));
  constexpr size_t kDescribed = 128;
  return kStateFixed + kDescribed + each * static_cast<size_t>(tokens);
}

size_t most_written_bytes(const StateLayout& layout, int32_t vocab, int64_t answer_ids,
                          int64_t tokens) {
  // The longest names, and numbers of 20 digits.
  StateHeader header{.model = std::string(32, 'f'),
                     .weights = "bf16",
                     .chunk = INT32_MAX,
                     .id = UINT64_MAX,
                     .position = INT64_MAX,
                     .pending = INT32_MAX,
                     .answer = StateAnswer{.request_id = std::string(128, 'r'),
                                           .digest = std::string(32, 'f'),
                                           .reason = "stop_string",
                                           .stop_id = INT32_MAX,
                                           .prompt_tokens = INT64_MAX,
                                           .before = INT64_MAX,
                                           .begins_text = true,
                                           .seed = UINT64_MAX},
                     .layout = layout};
  const size_t data = layout.bytes(tokens) +
                      (static_cast<size_t>(vocab) + 63) / 64 * sizeof(uint64_t) +
                      static_cast<size_t>(answer_ids) * sizeof(int32_t);
  constexpr size_t kLengths = 128;  // of history and answer, which are not in this header
  const size_t spaces = layout.bytes(tokens) >= kAligned ? kBlock : 0;
  std::vector<Summed> pieces = {{kHistoryPiece}, {kAnswerPiece}};
  for (const StatePieceLayout& piece : layout.pieces(tokens)) {
    pieces.push_back({piece.name, piece.bytes});
  }
  const std::string described = json_of(header, pieces);
  return kStateFixed + described.size() + kLengths + spaces + data;
}

StateHeader read_state_header(uint64_t bytes, const ReadAt& read) {
  return parse_header(bytes, read).header;
}

StateHeader read_state(uint64_t bytes, const ReadAt& read, const StateHeader& wanted,
                       const StateRooms& rooms, const ReadBase& read_base) {
  WrittenHeader parsed = parse_header(bytes, read);
  check_fits(parsed.header, wanted);
  StateHeader& header = parsed.header;
  const size_t slot = wanted.layout.pieces().size();
  const int64_t pages = wanted.layout.grows() ? StateLayout::pages(header.position) : 0;
  if (slot + static_cast<size_t>(pages) != rooms.size()) {
    refuse_damaged(fmt::format("it has {} tokens, its record has another number", header.position));
  }
  if (header.base.id > 0) {
    if (!read_base) refuse_incomplete();
    const auto first = rooms.begin() + static_cast<ptrdiff_t>(slot);
    read_base(header.base, {first, first + header.pages_in_base()});
  }
  const std::vector<StatePieceLayout> pieces = wanted.layout.pieces(header.position);
  DataReader data(read, parsed.data_begin, std::move(parsed.pieces));
  for (const auto room : in_written_order(parsed.order, wanted.layout, pieces, rooms)) {
    data.into(room);
  }
  header.history.resize(parsed.history);
  data.into(std::as_writable_bytes(std::span(header.history)));
  header.answer_ids.resize(parsed.answer_ids);
  data.into(std::as_writable_bytes(std::span(header.answer_ids)));
  data.check();
  check_values(header, wanted, rooms);
  header.base = {};  // all pages are in the rooms
  return std::move(header);
}

PageGroupRef read_page_group(uint64_t bytes, const ReadAt& read, const PageGroupRef& wanted,
                             const StateRooms& pages, int64_t* end) {
  WrittenPages group = parse_pages(bytes, read);
  if (group.id != wanted.id || group.checksum != wanted.checksum) {
    refuse_state(EndReason::kForeignState,
                 fmt::format("page group {} is not the one that it was written with: restore "
                             "the file",
                             wanted.id));
  }
  const auto count = static_cast<int64_t>(group.pages.size());
  if (group.first + count != *end) {
    refuse_state(EndReason::kForeignState,
                 fmt::format("its page group has pages up to {}, expected up to {}",
                             group.first + count - 1, *end - 1));
  }
  StateRooms rooms(pages.begin() + group.first, pages.begin() + *end);
  for (size_t p = 0; p < rooms.size(); ++p) {
    if (rooms[p].size() == group.pages[p].bytes) continue;
    refuse_state(EndReason::kForeignState, "the sizes of its pages and of its arrays differ");
  }
  DataReader data(read, group.data_begin, std::move(group.pages));
  for (const auto room : rooms) data.into(room);
  data.check();
  *end = group.first;
  return group.base;
}

StateHeader read_tokens(uint64_t bytes, const ReadAt& read, int32_t vocab) {
  WrittenTokens parsed = parse_tokens(bytes, read);
  check_tokens(parsed.tokens, vocab);
  return {.id = parsed.id, .position = parsed.first, .tokens = std::move(parsed.tokens)};
}

uint64_t read_id(uint64_t bytes, const ReadAt& read) { return parse_id(bytes, read); }

// The ids are the end of the data: whatever a checksum is of that they lie in is read, too.
StateHeader read_answer(uint64_t bytes, const ReadAt& read, int32_t vocab) {
  WrittenHeader parsed = parse_header(bytes, read);
  const uint64_t ids = parsed.answer_ids * sizeof(int32_t);
  std::vector<Summed> summed = std::move(parsed.pieces);
  uint64_t begin = 0;  // of the first one
  size_t before = 0;
  for (; before + 1 < summed.size() && begin + summed[before].bytes <= parsed.data - ids;
       ++before) {
    begin += summed[before].bytes;
  }
  summed.erase(summed.begin(), summed.begin() + static_cast<ptrdiff_t>(before));
  std::vector<std::byte> end(parsed.data - begin);
  DataReader data(read, parsed.data_begin + begin, std::move(summed));
  data.into(end);
  data.check();
  parsed.header.answer_ids.resize(parsed.answer_ids);
  std::ranges::copy(std::span(end).last(ids),
                    std::as_writable_bytes(std::span(parsed.header.answer_ids)).begin());
  check_answer(parsed.header, vocab);
  return std::move(parsed.header);
}

}  // namespace recurve
