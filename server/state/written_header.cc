// The header of a written state: from JSON, and to it.
#include "server/state/written_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace recurve {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie");

constexpr size_t kMostHeader = size_t{16} << 20;
constexpr size_t kMostText = 256;  // bytes; sentences quote it
constexpr size_t kMostPieces = 1024;
constexpr uint64_t kMostData = uint64_t{1} << 44;
constexpr int64_t kMostExtent = int64_t{1} << 40;

template <typename T>
T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

constexpr std::string_view kGrowths[] = {"fixed", "ring", "token"};  // as StateGrowth has them

json array_json(const StateArray& array) {
  json all = {{"piece", array.per_token() ? "page" : array.piece},
              {"name", array.name},
              {"layer", array.layer},
              {"dtype", name_of(array.dtype)},
              {"shape", array.shape}};
  if (array.growth != StateGrowth::kFixed) {
    all["growth"] = kGrowths[static_cast<size_t>(array.growth)];
  }
  return all;
}
// One of the two that are no part of the state, a piece by itself.
json array_json(std::string_view name, const char* dtype, size_t length) {
  return {{"piece", name}, {"name", name}, {"layer", -1}, {"dtype", dtype}, {"shape", {length}}};
}

json arrays_json(const StateHeader& header) {
  json arrays = json::array();
  for (const StateArray& array : header.layout.arrays) arrays.push_back(array_json(array));
  arrays.push_back(array_json(kHistoryPiece, "I64", header.history.size()));
  arrays.push_back(array_json(kAnswerPiece, "I32", header.answer_ids.size()));
  return arrays;
}

json pieces_json(const std::vector<Summed>& pieces) {
  json all = json::array();
  for (const Summed& piece : pieces) {
    all.push_back({{"name", piece.name},
                   {"bytes", piece.bytes},
                   {"checksum", fmt::format("{:016x}", piece.sum)}});
  }
  return all;
}

json base_json(const PageGroupRef& base) {
  return {{"id", std::to_string(base.id)}, {"checksum", fmt::format("{:016x}", base.checksum)}};
}

// Members of the header, each of which is what it must be, or a StateError.
const json& member(const json& of, const char* name) {
  const auto found = of.find(name);
  if (found == of.end()) refuse_damaged(fmt::format("its header must have the field \"{}\"", name));
  return *found;
}
std::string text(const json& of, const char* name) {
  const json& value = member(of, name);
  if (!value.is_string())
    refuse_damaged(fmt::format("\"{}\" in its header must be a string", name));
  std::string text = value.get<std::string>();
  if (text.size() > kMostText) {
    refuse_damaged(fmt::format("\"{}\" in its header must have at most {} bytes, got {}", name,
                               kMostText, text.size()));
  }
  return text;
}
int64_t number(const json& value, const char* name, int64_t least, int64_t most) {
  const bool whole = value.is_number_integer() &&
                     (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (whole && value.get<int64_t>() >= least && value.get<int64_t>() <= most) {
    return value.get<int64_t>();
  }
  refuse_damaged(
      fmt::format("\"{}\" in its header must be an integer in [{}, {}]", name, least, most));
}
int64_t number_in(const json& of, const char* name, int64_t least, int64_t most) {
  return number(member(of, name), name, least, most);
}
uint64_t digits(const json& of, const char* name, int base = 10) {
  const std::string value = text(of, name);
  uint64_t parsed = 0;
  const char* end = value.data() + value.size();
  const auto [after, error] = std::from_chars(value.data(), end, parsed, base);
  if (error != std::errc() || after != end) {
    refuse_damaged(fmt::format("\"{}\" in its header must be a number", name));
  }
  return parsed;
}
const json& object_in(const json& of, const char* name) {
  const json& value = member(of, name);
  if (!value.is_object())
    refuse_damaged(fmt::format("\"{}\" in its header must be an object", name));
  return value;
}

PageGroupRef base_of(const json& header) {
  if (!header.contains("base")) return {};
  const json& base = object_in(header, "base");
  const PageGroupRef ref{digits(base, "id"), digits(base, "checksum", 16)};
  if (ref.id == 0) refuse_damaged("\"base\" in its header must have an id above 0");
  return ref;
}

std::vector<uint32_t> tokens_of(const json& header, size_t least = 1) {
  const json& all = member(header, "tokens");
  if (!all.is_array() || all.size() < least || all.size() > kMostTokens) {
    refuse_damaged(fmt::format("\"tokens\" in its header must be a list of {} to {} numbers", least,
                               kMostTokens));
  }
  std::vector<uint32_t> tokens;
  tokens.reserve(all.size());
  for (const json& token : all) {
    tokens.push_back(static_cast<uint32_t>(number(token, "tokens", 0, UINT32_MAX)));
  }
  return tokens;
}

void parse_text(const json& all, StateHeader* header) {
  if (all.contains("tokens")) header->tokens = tokens_of(all);
  if (!all.contains("last_tokens")) return;
  const json& last = object_in(all, "last_tokens");
  if (!header->tokens.empty()) refuse_damaged("its header has \"tokens\" and \"last_tokens\"");
  header->tokens = tokens_of(last, 0);
  header->tokens_first = number_in(last, "first", 1, INT64_MAX / 2);
  header->tokens_before = digits(last, "before");
}

std::vector<int64_t> shape_of(const json& array) {
  const json& extents = member(array, "shape");
  if (!extents.is_array() || extents.size() > 8)
    refuse_damaged("the shape of an array must be a list of at most 8 numbers");
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const json& extent : extents) {
    shape.push_back(number(extent, "shape", 0, kMostExtent));
    if (__builtin_mul_overflow(elements, shape.back(), &elements) || elements > kMostExtent) {
      refuse_damaged("an array exceeds the size limit");
    }
  }
  return shape;
}

DType dtype_of(const std::string& name) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kI32}) {
    if (name == name_of(type)) return type;
  }
  refuse_damaged("the dtype of an array is unknown");
}

StateGrowth growth_of(const json& array) {
  if (!array.contains("growth")) return StateGrowth::kFixed;
  const auto found = std::ranges::find(kGrowths, text(array, "growth"));
  if (found == std::end(kGrowths)) refuse_damaged("the growth of an array is unknown");
  return static_cast<StateGrowth>(found - std::begin(kGrowths));
}

// One of the two arrays that are no part of the state: its length.
size_t length_of(const json& array, std::string_view name, const char* dtype) {
  const std::vector<int64_t> shape = shape_of(array);
  if (text(array, "name") != name || text(array, "dtype") != dtype || shape.size() != 1) {
    refuse_damaged(fmt::format("its header must list the array \"{}\" at this index", name));
  }
  return static_cast<size_t>(shape[0]);
}

BoundId adapter_of(const json& header) {
  const json& of = object_in(header, "adapter");
  BoundId adapter{.name = text(of, "name"), .digest = text(of, "digest")};
  if (adapter.name.empty()) refuse_damaged("\"adapter\" in its header must have a name");
  return adapter;
}

StateAnswer answer_of(const json& header) {
  const json& of = object_in(header, "answer");
  return {.request_id = text(of, "request"),
          .digest = text(of, "digest"),
          .reason = text(of, "reason"),
          .stop_id = static_cast<int32_t>(number_in(of, "stop", -1, INT32_MAX)),
          .prompt_tokens = number_in(of, "prompt_tokens", 0, INT64_MAX),
          .before = number_in(of, "before", 0, INT64_MAX),
          .begins_text = of.contains("begins_text") || number_in(of, "before", 0, INT64_MAX) == 0,
          .seed = digits(object_in(header, "sampler"), "seed")};
}

// Whether that many bytes are what is written with a state that has absorbed as much as the header
// says.
bool is_size_of(const StateHeader& header, uint64_t bytes) {
  const StateLayout& layout = header.layout;
  const size_t slot = layout.bytes(), page = layout.page_bytes();
  if (bytes < slot || page == 0) return bytes == slot;
  const auto pages =
      static_cast<uint64_t>(StateLayout::pages(header.position) - header.pages_in_base());
  return pages <= kMostData / page && bytes - slot == pages * page;
}

void parse_arrays(const json& all, uint32_t version, WrittenHeader* parsed) {
  const json& arrays = member(all, "arrays");
  if (!arrays.is_array() || arrays.size() < 2)
    refuse_damaged("its header must list at least 2 arrays");
  StateHeader& header = parsed->header;
  uint64_t data = 0;  // a page at most of arrays that grow
  std::set<std::string> pieces;
  for (size_t a = 0; a + 2 < arrays.size(); ++a) {
    if (!arrays[a].is_object()) refuse_damaged("each array in its header must be an object");
    StateArray array{.name = text(arrays[a], "name"),
                     .layer = static_cast<int>(number_in(arrays[a], "layer", 0, INT32_MAX)),
                     .dtype = dtype_of(text(arrays[a], "dtype")),
                     .shape = shape_of(arrays[a]),
                     .piece = text(arrays[a], "piece")};
    if (version > 2) array.growth = growth_of(arrays[a]);
    if (array.per_token() && array.bytes() == 0)
      refuse_damaged("an array that grows has 0 bytes a token");
    pieces.insert(array.piece);
    if (pieces.size() > kMostPieces)
      refuse_damaged(fmt::format("it must have at most {} pieces", kMostPieces));
    data += array.bytes() * (array.per_token() ? kPageTokens : 1);
    if (data > kMostData) refuse_damaged("it exceeds the size limit of states");
    header.layout.arrays.push_back(std::move(array));
  }
  const json &history = arrays[arrays.size() - 2], &answer = arrays.back();
  if (!history.is_object() || !answer.is_object())
    refuse_damaged("each array in its header must be an object");
  parsed->history = length_of(history, kHistoryPiece, "I64");
  parsed->answer_ids = length_of(answer, kAnswerPiece, "I32");
  const uint64_t behind = parsed->history * sizeof(uint64_t) + parsed->answer_ids * sizeof(int32_t);
  if (parsed->data < behind || !is_size_of(header, parsed->data - behind)) {
    refuse_damaged("the sizes of its arrays and of its data differ");
  }
}

// The pieces of the state may come in any order.
void parse_pieces(const json& all, WrittenHeader* parsed) {
  const json& pieces = member(all, "pieces");
  const StateLayout& layout = parsed->header.layout;
  const int64_t position = parsed->header.position, first = parsed->header.pages_in_base();
  const int64_t pages = layout.grows() ? StateLayout::pages(position) - first : 0;
  const size_t wanted = layout.pieces().size() + static_cast<size_t>(pages) + 2;
  if (!pieces.is_array() || pieces.size() != wanted) {
    refuse_damaged("its header must list each piece of its arrays once");
  }
  std::map<std::string, StatePieceLayout> divided;
  for (StatePieceLayout& piece : layout.pieces(position, first)) {
    if (!divided.emplace(piece.name, piece).second) refuse_damaged("two pieces have one name");
  }
  const auto take = [&](const json& piece, const std::string& name, uint64_t bytes) {
    const auto found = static_cast<uint64_t>(number_in(piece, "bytes", 0, kMostData));
    if (text(piece, "name") != name || found != bytes) {
      refuse_damaged("a name or size of its pieces differs from its arrays");
    }
    parsed->pieces.push_back({name, bytes, digits(piece, "checksum", 16)});
  };
  for (const json& piece : pieces) {
    if (!piece.is_object()) refuse_damaged("each piece in its header must be an object");
    if (parsed->pieces.size() + 2 >= wanted) continue;  // history and answer: below
    const auto of_state = divided.extract(text(piece, "name"));
    if (of_state.empty()) refuse_damaged("its header lists a piece without arrays");
    take(piece, of_state.key(), of_state.mapped().bytes);
    parsed->order.push_back(std::move(of_state.mapped()));
  }
  take(pieces[wanted - 2], kHistoryPiece, parsed->history * sizeof(uint64_t));
  take(pieces[wanted - 1], kAnswerPiece, parsed->answer_ids * sizeof(int32_t));
}

// The part before the data.
struct Front {
  uint32_t version = 0;
  uint64_t checksum = 0, data_begin = 0, data = 0;
  json header;
};

uint32_t parse_version(const std::byte* fixed) {
  const auto version = get<uint32_t>(fixed + 8);
  if (version > kStateVersion) {
    refuse_state(EndReason::kForeignState,
                 fmt::format("its format version is {}, and this program reads versions up to "
                             "{}: use a newer program",
                             version, kStateVersion));
  }
  if (version == 0) refuse_damaged("its format version is 0, expected at least 1");
  if (version < kOldestStateVersion) {
    refuse_state(EndReason::kOtherModel,  // nothing is wrong with it
                 fmt::format("its format version is {}, and this program reads versions from {} "
                             "on: use an older program",
                             version, kOldestStateVersion));
  }
  return version;
}

Front parse_front(uint64_t bytes, const ReadAt& read) {
  std::byte fixed[kStateFixed];
  if (bytes < kStateFixed)
    refuse_state(EndReason::kForeignState,
                 fmt::format("it has {} bytes, a state has at least {}", bytes, kStateFixed));
  read(0, fixed);
  if (std::memcmp(fixed, kStateMagic.data(), kStateMagic.size()) != 0) {
    refuse_state(EndReason::kForeignState,
                 "it is not a state: its first 8 bytes are not those of a state");
  }
  const auto header_bytes = get<uint32_t>(fixed + 12);
  Front parsed{.version = parse_version(fixed),
               .checksum = get<uint64_t>(fixed + 24),
               .data_begin = kStateFixed + header_bytes,
               .data = get<uint64_t>(fixed + 16)};
  if (header_bytes > kMostHeader || parsed.data > kMostData ||
      parsed.data_begin + parsed.data != bytes) {
    refuse_damaged(fmt::format("it has {} bytes, its header gives another size", bytes));
  }
  std::string front(24 + header_bytes, '\0');
  std::memcpy(front.data(), fixed, 24);
  read(kStateFixed, std::as_writable_bytes(std::span(front).subspan(24)));
  if (checksum_of(front) != parsed.checksum) {
    refuse_damaged("the checksum of its header differs");
  }
  parsed.header = json::parse(front.begin() + 24, front.end(), nullptr, false);
  if (!parsed.header.is_object()) refuse_damaged("its header must be a JSON object");
  return parsed;
}

}  // namespace

std::string json_of(const StateHeader& header, const std::vector<Summed>& pieces) {
  json all = {{"model", header.model},        {"weights", header.weights},
              {"chunk", header.chunk},        {"id", std::to_string(header.id)},
              {"position", header.position},  {"pieces", pieces_json(pieces)},
              {"arrays", arrays_json(header)}};
  if (header.pending) all["pending"] = *header.pending;
  if (header.base.id > 0) all["base"] = base_json(header.base);
  if (!header.adapter.name.empty()) {
    all["adapter"] = {{"name", header.adapter.name}, {"digest", header.adapter.digest}};
  }
  if (header.tokens_first > 0) {
    all["last_tokens"] = {{"first", header.tokens_first},
                          {"before", std::to_string(header.tokens_before)},
                          {"tokens", header.tokens}};
  } else if (!header.tokens.empty()) {
    all["tokens"] = header.tokens;
  }
  if (const auto& answer = header.answer) {
    all["sampler"] = {{"seed", std::to_string(answer->seed)}, {"index", header.answer_ids.size()}};
    all["answer"] = {{"request", answer->request_id}, {"digest", answer->digest},
                     {"reason", answer->reason},      {"stop", answer->stop_id},
                     {"before", answer->before},      {"prompt_tokens", answer->prompt_tokens}};
    if (answer->begins_text && answer->before > 0) all["answer"]["begins_text"] = true;
  }
  return all.dump();
}

std::string json_of(const WrittenPages& group) {
  json all = {{"id", std::to_string(group.id)},
              {"first", group.first},
              {"pieces", pieces_json(group.pages)}};
  if (group.base.id > 0) all["base"] = base_json(group.base);
  return all.dump();
}

std::string json_of(const WrittenTokens& tokens) {
  return json{{"id", std::to_string(tokens.id)}, {"first", tokens.first}, {"tokens", tokens.tokens}}
      .dump();
}

WrittenHeader parse_header(uint64_t bytes, const ReadAt& read) {
  const Front front = parse_front(bytes, read);
  const json& all = front.header;
  if (all.contains("first")) {
    refuse_state(EndReason::kForeignState, all.contains("tokens")
                                               ? "it is a file of tokens, expected a state"
                                               : "it is a page group, expected a state");
  }
  WrittenHeader parsed{.data_begin = front.data_begin, .data = front.data};
  parsed.header = {.model = text(all, "model"),
                   .weights = text(all, "weights"),
                   .chunk = static_cast<int32_t>(number_in(all, "chunk", 0, INT32_MAX)),
                   .id = digits(all, "id"),
                   .position = number_in(all, "position", 0, INT64_MAX)};
  if (front.version > 2) parsed.header.base = base_of(all);
  if (all.contains("pending")) {
    parsed.header.pending = static_cast<int32_t>(number_in(all, "pending", 0, INT32_MAX));
  }
  if (front.version > kVersionWithoutAdapter) parsed.header.adapter = adapter_of(all);
  if (all.contains("answer")) parsed.header.answer = answer_of(all);
  parse_text(all, &parsed.header);
  parse_arrays(all, front.version, &parsed);
  if (parsed.header.base.id > 0 &&
      (!parsed.header.layout.grows() || parsed.header.pages_in_base() == 0)) {
    refuse_damaged("its header has a base, but the state has no full page");
  }
  parse_pieces(all, &parsed);
  return parsed;
}

WrittenTokens parse_tokens(uint64_t bytes, const ReadAt& read) {
  const Front front = parse_front(bytes, read);
  if (front.data > 0) refuse_damaged("its tokens have data behind them");
  return {.id = digits(front.header, "id"),
          .first = number_in(front.header, "first", 0, INT64_MAX / 2),
          .tokens = tokens_of(front.header)};
}

uint64_t parse_id(uint64_t bytes, const ReadAt& read) {
  return digits(parse_front(bytes, read).header, "id");
}

WrittenPages parse_pages(uint64_t bytes, const ReadAt& read) {
  const Front front = parse_front(bytes, read);
  WrittenPages parsed{.id = digits(front.header, "id"),
                      .checksum = front.checksum,
                      .base = base_of(front.header),
                      .first = number_in(front.header, "first", 0, INT64_MAX / 2),
                      .data_begin = front.data_begin};
  const json& pieces = member(front.header, "pieces");
  if (!pieces.is_array() || pieces.empty())
    refuse_damaged("its header must list at least one page");
  uint64_t data = 0;
  for (const json& piece : pieces) {
    if (!piece.is_object()) refuse_damaged("each page in its header must be an object");
    const auto size = static_cast<uint64_t>(number_in(piece, "bytes", 1, kMostData));
    const auto page = parsed.first + static_cast<int64_t>(parsed.pages.size());
    if (text(piece, "name") != page_name(page)) refuse_damaged("its pages are not in order");
    if ((data += size) > front.data) break;
    parsed.pages.push_back({page_name(page), size, digits(piece, "checksum", 16)});
  }
  if (data != front.data) refuse_damaged("the sizes of its pages and of its data differ");
  if ((parsed.base.id == 0) != (parsed.first == 0)) {
    refuse_damaged("its header must have a base if and only if its first page is not page 0");
  }
  return parsed;
}

}  // namespace recurve
