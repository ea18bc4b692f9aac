#include "server/state/state_form.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>

namespace recurve {
namespace {

using nlohmann::json;
using Kind = StateError::Kind;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr uint32_t kVersion = 1;
constexpr size_t kFixed = 32;               // bytes in front of the header
constexpr size_t kPiece = size_t{1} << 16;  // that a checksum is of
constexpr size_t kMostHeader = size_t{16} << 20;
constexpr uint64_t kMostData = uint64_t{1} << 44;
constexpr int64_t kMostExtent = int64_t{1} << 40;
// Read in one go: as much as a core's cache holds, so that checksums find it there.
constexpr size_t kRead = 4 * kPiece;
// Of states from so many bytes on a second thread adds up the checksums, while the first one reads.
constexpr size_t kTwoThreads = size_t{16} << 20;
// Data of so many bytes begins on a multiple of kBlock.
constexpr size_t kAligned = size_t{1} << 20, kBlock = 4096;

[[noreturn]] void refuse(Kind kind, const std::string& what) { throw StateError(kind, what); }
[[noreturn]] void damaged(const std::string& what) { refuse(Kind::kDamaged, what); }

uint64_t checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

template <typename T>
void put(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <typename T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

uint64_t pieces_in(uint64_t data) { return (data + kPiece - 1) / kPiece; }
uint64_t bytes_of(uint64_t header, uint64_t data) {
  return kFixed + header + data + 8 * pieces_in(data) + 8;
}

// The checksums of data that comes in spans of any length.
class Checksums {
 public:
  void add(const void* from, size_t bytes) {
    const auto* data = static_cast<const char*>(from);
    while (bytes > 0) {
      if (begun_.empty() && bytes >= kPiece) {
        sums_.push_back(checksum(data, kPiece));
        data += kPiece, bytes -= kPiece;
        continue;
      }
      const size_t part = std::min(bytes, kPiece - begun_.size());
      begun_.append(data, part);
      data += part, bytes -= part;
      if (begun_.size() == kPiece) end_piece();
    }
  }
  const std::vector<uint64_t>& finish() {
    if (!begun_.empty()) end_piece();
    return sums_;
  }

 private:
  void end_piece() {
    sums_.push_back(checksum(begun_.data(), begun_.size()));
    begun_.clear();
  }
  std::vector<uint64_t> sums_;
  std::string begun_;
};

json array_json(const std::string& name, int layer, const char* dtype, json shape) {
  return {{"name", name}, {"layer", layer}, {"dtype", dtype}, {"shape", std::move(shape)}};
}

json arrays_json(const StateHeader& header) {
  json arrays = json::array();
  for (const StateArray& array : header.layout.arrays) {
    arrays.push_back(array_json(array.name, array.layer, name_of(array.dtype), array.shape));
  }
  arrays.push_back(array_json("history", -1, "I64", json::array({header.history.size()})));
  arrays.push_back(array_json("answer", -1, "I32", json::array({header.answer_ids.size()})));
  return arrays;
}

std::string json_of(const StateHeader& header) {
  json all = {{"model", header.model},       {"weights", header.weights},
              {"chunk", header.chunk},       {"id", std::to_string(header.id)},
              {"position", header.position}, {"arrays", arrays_json(header)}};
  if (header.pending) all["pending"] = *header.pending;
  if (const auto& answer = header.answer) {
    all["sampler"] = {{"seed", std::to_string(answer->seed)}, {"index", header.answer_ids.size()}};
    all["answer"] = {{"request", answer->request_id}, {"digest", answer->digest},
                     {"reason", answer->reason},      {"stop", answer->stop_id},
                     {"before", answer->before},      {"prompt_tokens", answer->prompt_tokens}};
  }
  return all.dump();
}

// Members of the header, each of which is what it must be, or a StateError.
const json& member(const json& of, const char* name) {
  const auto found = of.find(name);
  if (found == of.end()) damaged(fmt::format("its header has no \"{}\"", name));
  return *found;
}
std::string text(const json& of, const char* name) {
  const json& value = member(of, name);
  if (!value.is_string()) damaged(fmt::format("\"{}\" of its header is no text", name));
  return value.get<std::string>();
}
int64_t number(const json& value, const char* name, int64_t least, int64_t most) {
  const bool whole = value.is_number_integer() &&
                     (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (whole && value.get<int64_t>() >= least && value.get<int64_t>() <= most) {
    return value.get<int64_t>();
  }
  damaged(fmt::format("\"{}\" of its header is no number in [{}, {}]", name, least, most));
}
int64_t number_in(const json& of, const char* name, int64_t least, int64_t most) {
  return number(member(of, name), name, least, most);
}
uint64_t digits(const json& of, const char* name) {
  const std::string value = text(of, name);
  uint64_t parsed = 0;
  const char* end = value.data() + value.size();
  const auto [after, error] = std::from_chars(value.data(), end, parsed);
  if (error != std::errc() || after != end) {
    damaged(fmt::format("\"{}\" of its header is no number", name));
  }
  return parsed;
}
const json& object_in(const json& of, const char* name) {
  const json& value = member(of, name);
  if (!value.is_object()) damaged(fmt::format("\"{}\" of its header is no object", name));
  return value;
}

std::vector<int64_t> shape_of(const json& array) {
  const json& extents = member(array, "shape");
  if (!extents.is_array() || extents.size() > 8) damaged("an array's shape is none");
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const json& extent : extents) {
    shape.push_back(number(extent, "shape", 0, kMostExtent));
    if (__builtin_mul_overflow(elements, shape.back(), &elements) || elements > kMostExtent) {
      damaged("an array is larger than any is");
    }
  }
  return shape;
}

DType dtype_of(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kI32}) {
    if (name == name_of(type)) return type;
  }
  damaged("a state's array is of an unknown type");
}

// One of the two arrays that are no part of the state: its length.
size_t length_of(const json& array, const char* name, const char* dtype) {
  const std::vector<int64_t> shape = shape_of(array);
  if (text(array, "name") != name || text(array, "dtype") != dtype || shape.size() != 1) {
    damaged(fmt::format("its header lists no \"{}\" where it must be", name));
  }
  return static_cast<size_t>(shape[0]);
}

StateAnswer answer_of(const json& header) {
  const json& of = object_in(header, "answer");
  return {.request_id = text(of, "request"),
          .digest = text(of, "digest"),
          .reason = text(of, "reason"),
          .stop_id = static_cast<int32_t>(number_in(of, "stop", -1, INT32_MAX)),
          .prompt_tokens = number_in(of, "prompt_tokens", 0, INT64_MAX),
          .before = number_in(of, "before", 0, INT64_MAX),
          .seed = digits(object_in(header, "sampler"), "seed")};
}

struct Parsed {
  StateHeader header;                  // without history and answer's ids
  size_t history = 0, answer_ids = 0;  // how many
  uint64_t data_begin = 0, data = 0;
};

void parse_arrays(const json& all, Parsed* parsed) {
  const json& arrays = member(all, "arrays");
  if (!arrays.is_array() || arrays.size() < 2) damaged("its header lists no arrays");
  StateHeader& header = parsed->header;
  uint64_t data = 0;
  for (size_t a = 0; a + 2 < arrays.size(); ++a) {
    if (!arrays[a].is_object()) damaged("its header lists what is no array");
    StateArray array{.name = text(arrays[a], "name"),
                     .layer = static_cast<int>(number_in(arrays[a], "layer", 0, INT32_MAX)),
                     .dtype = dtype_of(text(arrays[a], "dtype")),
                     .shape = shape_of(arrays[a])};
    data += array.bytes();
    if (data > kMostData) damaged("it is larger than any state is");
    header.layout.arrays.push_back(std::move(array));
  }
  const json &history = arrays[arrays.size() - 2], &answer = arrays.back();
  if (!history.is_object() || !answer.is_object()) damaged("its header lists what is no array");
  parsed->history = length_of(history, "history", "I64");
  parsed->answer_ids = length_of(answer, "answer", "I32");
  data += parsed->history * sizeof(uint64_t) + parsed->answer_ids * sizeof(int32_t);
  if (data != parsed->data) damaged("its arrays are not what its data is");
}

Parsed parse(uint64_t bytes, const ReadAt& read) {
  std::byte fixed[kFixed];
  if (bytes < kFixed) refuse(Kind::kForeign, "it is no state: it is too short for one");
  read(0, fixed);
  if (std::memcmp(fixed, kStateMagic.data(), kStateMagic.size()) != 0) {
    refuse(Kind::kForeign, "it is no state: it does not begin as one");
  }
  if (const auto version = get<uint32_t>(fixed + 8); version != kVersion) {
    refuse(Kind::kNewer, fmt::format("it is written in version {} of the form, and this program "
                                     "reads up to version {}: use a newer one",
                                     version, kVersion));
  }
  const auto header_bytes = get<uint32_t>(fixed + 12);
  Parsed parsed{.data_begin = kFixed + header_bytes, .data = get<uint64_t>(fixed + 16)};
  if (header_bytes > kMostHeader || parsed.data > kMostData ||
      bytes_of(header_bytes, parsed.data) != bytes) {
    damaged(fmt::format("it has {} bytes, which is not what its beginning says", bytes));
  }
  std::string front(24 + header_bytes, '\0');
  std::memcpy(front.data(), fixed, 24);
  read(kFixed, std::as_writable_bytes(std::span(front).subspan(24)));
  if (checksum_of(front) != get<uint64_t>(fixed + 24)) {
    damaged("its header is not what was written: the checksum differs");
  }
  const json all = json::parse(front.begin() + 24, front.end(), nullptr, false);
  if (!all.is_object()) damaged("its header is no JSON object");
  parsed.header = {.model = text(all, "model"),
                   .weights = text(all, "weights"),
                   .chunk = static_cast<int32_t>(number_in(all, "chunk", 0, INT32_MAX)),
                   .id = digits(all, "id"),
                   .position = number_in(all, "position", 0, INT64_MAX)};
  if (all.contains("pending")) {
    parsed.header.pending = static_cast<int32_t>(number_in(all, "pending", 0, INT32_MAX));
  }
  if (all.contains("answer")) parsed.header.answer = answer_of(all);
  parse_arrays(all, &parsed);
  return parsed;
}

bool same(const StateArray& a, const StateArray& b) {
  return a.name == b.name && a.layer == b.layer && a.dtype == b.dtype && a.shape == b.shape;
}

void check_fits(const StateHeader& found, const StateHeader& wanted) {
  const auto differs = [](const char* what, const auto& theirs, const auto& ours) {
    refuse(Kind::kOtherModel,
           fmt::format("it is of a server with {} {}, and this one has {}", what, theirs, ours));
  };
  if (found.model != wanted.model) differs("the model", found.model, wanted.model);
  if (found.weights != wanted.weights) differs("weights in", found.weights, wanted.weights);
  if (found.chunk != wanted.chunk) differs("prompts cut every", found.chunk, wanted.chunk);
  const auto &a = found.layout.arrays, &b = wanted.layout.arrays;
  if (!std::equal(a.begin(), a.end(), b.begin(), b.end(), same)) {
    refuse(Kind::kOtherModel,
           "its arrays are not those of this server's states: see --state, and the model");
  }
}

// Reads data and checksums side by side.
class DataReader {
 public:
  DataReader(const ReadAt& read, const Parsed& parsed) : read_(read), at_(parsed.data_begin) {}

  void into(std::span<std::byte> to) {
    if (to.size() >= kTwoThreads) return into_beside(to);
    read_parts(to, kRead,
               [&](std::span<const std::byte> part) { sums_.add(part.data(), part.size()); });
  }
  // To be called once all data is read.
  void check() {
    const std::vector<uint64_t>& sums = sums_.finish();
    std::vector<uint64_t> written(sums.size() + 1);
    read_(at_, std::as_writable_bytes(std::span(written)));
    const uint64_t of_all = written.back();
    written.pop_back();
    if (checksum(written.data(), written.size() * sizeof(uint64_t)) != of_all || written != sums) {
      damaged("its data is not what was written: a checksum differs");
    }
  }

 private:
  // The checksums of what has been read are added up on a thread of their own.
  void into_beside(std::span<std::byte> to) {
    constexpr size_t kFailed = SIZE_MAX, kPart = 16 * kRead;
    std::atomic<size_t> there = 0;
    const auto adds = std::async(std::launch::async, [&] {
      for (size_t added = 0; added < to.size();) {
        there.wait(added);
        const size_t now = there;
        if (now == kFailed) return;
        sums_.add(to.data() + added, now - added);
        added = now;
      }
    });
    const auto tell = [&](size_t bytes) {
      there = bytes;
      there.notify_one();
    };
    try {
      size_t read = 0;
      read_parts(to, kPart, [&](std::span<const std::byte> part) { tell(read += part.size()); });
    } catch (...) {
      tell(kFailed);
      throw;
    }
    adds.wait();
  }
  template <typename Use>
  void read_parts(std::span<std::byte> to, size_t most, const Use& use) {
    while (!to.empty()) {
      const auto part = to.first(std::min(most, to.size()));
      read_(at_, part);
      at_ += part.size();
      to = to.subspan(part.size());
      use(part);
    }
  }

  const ReadAt& read_;
  uint64_t at_;
  Checksums sums_;
};

}  // namespace

uint64_t checksum_of(std::string_view bytes) { return checksum(bytes.data(), bytes.size()); }

StateFrame frame_of(const StateHeader& header, std::span<const std::byte> state) {
  std::string described = json_of(header);
  if (state.size() >= kAligned) {
    described.append((kBlock - (kFixed + described.size()) % kBlock) % kBlock, ' ');
  }
  const size_t history = header.history.size() * sizeof(uint64_t);
  const size_t answer = header.answer_ids.size() * sizeof(int32_t);
  StateFrame frame;
  frame.front += kStateMagic;
  put(kVersion, &frame.front);
  put(static_cast<uint32_t>(described.size()), &frame.front);
  put(static_cast<uint64_t>(state.size() + history + answer), &frame.front);
  put(checksum_of(frame.front + described), &frame.front);
  frame.front += described;

  Checksums sums;
  sums.add(state.data(), state.size());
  sums.add(header.history.data(), history);
  sums.add(header.answer_ids.data(), answer);
  frame.back.append(reinterpret_cast<const char*>(header.history.data()), history);
  frame.back.append(reinterpret_cast<const char*>(header.answer_ids.data()), answer);
  const std::vector<uint64_t>& all = sums.finish();
  frame.back.append(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(uint64_t));
  put(checksum(all.data(), all.size() * sizeof(uint64_t)), &frame.back);
  return frame;
}

size_t most_written_bytes(const StateLayout& layout, int32_t vocab, int64_t answer_ids) {
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
                                           .seed = UINT64_MAX},
                     .layout = layout};
  const size_t data = layout.bytes() + (static_cast<size_t>(vocab) + 63) / 64 * sizeof(uint64_t) +
                      static_cast<size_t>(answer_ids) * sizeof(int32_t);
  constexpr size_t kLengths = 64;  // of history and answer, which are not in this header
  const size_t spaces = layout.bytes() >= kAligned ? kBlock : 0;
  return bytes_of(json_of(header).size() + kLengths + spaces, data);
}

StateHeader read_state_header(uint64_t bytes, const ReadAt& read) {
  return parse(bytes, read).header;
}

StateHeader read_state(uint64_t bytes, const ReadAt& read, const StateHeader& wanted,
                       std::span<std::byte> state) {
  Parsed parsed = parse(bytes, read);
  check_fits(parsed.header, wanted);
  StateHeader& header = parsed.header;
  DataReader data(read, parsed);
  data.into(state);
  header.history.resize(parsed.history);
  data.into(std::as_writable_bytes(std::span(header.history)));
  header.answer_ids.resize(parsed.answer_ids);
  data.into(std::as_writable_bytes(std::span(header.answer_ids)));
  data.check();
  return std::move(header);
}

// The ids are the end of the data: all pieces that they lie in are read, to be checked.
StateHeader read_answer(uint64_t bytes, const ReadAt& read) {
  Parsed parsed = parse(bytes, read);
  const uint64_t ids = parsed.answer_ids * sizeof(int32_t);
  const uint64_t first = (parsed.data - ids) / kPiece;  // piece
  std::vector<std::byte> end(parsed.data - first * kPiece);
  read(parsed.data_begin + first * kPiece, end);
  Checksums sums;
  sums.add(end.data(), end.size());
  std::vector<uint64_t> written(pieces_in(parsed.data) - first);
  read(parsed.data_begin + parsed.data + 8 * first, std::as_writable_bytes(std::span(written)));
  if (sums.finish() != written) damaged("its data is not what was written: a checksum differs");
  parsed.header.answer_ids.resize(parsed.answer_ids);
  std::memcpy(parsed.header.answer_ids.data(), end.data() + end.size() - ids, ids);
  return std::move(parsed.header);
}

}  // namespace recurve
