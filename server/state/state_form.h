#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/state/state_image.h"
#include "server/request/state_transfer.h"

namespace recurve {

// The serialized form of a state, in a folder of states and in an export. All numbers are
// little-endian, and what follows is all there is:
//
//   bytes  what
//   8      "RCRVSTAT"
//   4      u32  version of the form: 3, or 4 where the header has an adapter
//   4      u32  H, bytes of the header
//   8      u64  D, bytes of the data
//   8      u64  checksum of the 24 bytes before this one and of the header
//   H      the header: a JSON object, and spaces behind it where the data is large, which begins
//          on a multiple of 4096 then
//   D      the data: the pieces that the header lists, one after the other, nothing in between
//
// A checksum is XXH3 of 64 bits, seed 0. The header has these members, and readers ignore others:
//
//   "model"     fingerprint of config, weights as stored and tokenizer: 32 hexadecimal digits
//   "weights"   in what form the weights were in memory when the state was made: "bf16", "f32"
//   "chunk"     prompts were cut on this grid, in tokens
//   "id"        a number that no other state of its folder has, as a string of digits
//   "position"  tokens absorbed
//   "pending"   the token sampled last, which is not absorbed; absent: none
//   "sampler"   {"seed", a string of digits; "index", tokens drawn since}, of the last answer
//   "tokens"    of an export of a session that stores all its tokens: 4 * id + form of each, from
//               the first one on; absent: they are not known. Form 0: sampled, and absorbed by a
//               step alone; 1: of a prompt; 2: the first of a prompt; 3: the same, and sampled
//   "last_tokens"  of an export of a session that stores its last tokens alone: {"first", how many
//               tokens are before them; "before", a digest of these, a string of digits; "tokens",
//               as above, or none}; absent: they are not known, or they are all in "tokens"
//   "adapter"   {"name", "digest", 32 hexadecimal digits}: the LoRA adapter with which the state
//               was computed and is continued; absent: none
//   "answer"    the request whose answer ended here; absent: none. "request" its id, "digest" 32
//               hexadecimal digits of what it asked for, "reason" why the answer ended, "stop" the
//               id that ended it or -1, "prompt_tokens" absorbed for it, "before" the position it
//               began at, "begins_text" true if control tokens alone precede it; absent: if
//               "before" is 0
//   "pieces"    [{"name", "bytes", "checksum"}] in the order of the data: of the state first, what
//               its family divides it into ("recurrent", and "window" where it attends to one) and
//               its pages ("page 0", "page 1" ...), in any order; then "history" and "answer".
//               "checksum" is of the piece's bytes, 16 hexadecimal digits, the highest first
//   "arrays"    [{"piece", "name", "layer", "dtype", "shape", "growth"}]. Those of a piece lie in
//               it one after the other in this order, nothing in between or behind; numbers of the
//               last extent lie together. "dtype" is "F32", "BF16" or "I32" of the arrays of the
//               state, which come first, "I64" or "I32" of two more of layer -1, each in the piece
//               of its name: "history", a bit for every id seen, in words of 64 from id 0 on; and
//               "answer", the ids of the last answer, or, of a state that a prompt has left for
//               others, all that it has absorbed. "growth" is "ring" (rows of the last tokens) or
//               "token"; absent: "fixed". An array that grows by the token has the shape of a
//               token's row, and in each page the rows of 64 tokens, as many pages as "position"
//               takes; rows from "position" on are of no meaning
//
// A state may be used where "model", "weights", "chunk" and the arrays are those of the server,
// whatever pieces these are in, and where its numbers are what those of a state of the model may
// be: numbers of arrays are finite, an array that counts tokens has "position", and ids are below
// the vocabulary's size.
//
// In a folder a state that grows may be in several of these forms, so that what does not change is
// written once. Its own has the member
//
//   "base"      {"id", a string of digits; "checksum", 16 hexadecimal digits}: the page group that
//               has its last full page. Then "pieces" lists no full page. A page is full if a
//               state has absorbed all its 64 tokens, and does not change any more
//
// and a page group is in the same form with a header of the members "id" and "base" (absent: the
// group has page 0), as above; "first", the number of its first page; and "pieces", the pages from
// that one on, in order. The pages before these are in the base.
// "checksum" of a base is that in the beginning of the group with that id: so the checksum of a
// state covers all its pages.
//
// Tokens of a session that may return to any of them are in the same form, without data: the header
// has the members "id"; "first", the position of the first of them; and "tokens", as above.
//
// Version 2 is read too, and not written any more. Its arrays have no "growth", and none grows.

// The request whose answer ended in a state.
struct StateAnswer {
  std::string request_id = {};
  std::string digest = {};  // of what was asked for, 32 hexadecimal digits
  std::string reason = {};  // "length", "eos", "stop_id" or "stop_string"
  int32_t stop_id = -1;
  int64_t prompt_tokens = 0;
  int64_t before = 0;        // tokens the state had absorbed before it
  bool begins_text = false;  // they are control tokens, or none
  uint64_t seed = 0;
};

inline constexpr std::string_view kStateMagic = "RCRVSTAT";

// Tokens that are listed together, at most.
inline constexpr size_t kMostTokens = size_t{1} << 18;

// What is known of a state in addition to its bytes.
struct StateHeader {
  std::string model = {}, weights = {};
  int32_t chunk = 0;
  uint64_t id = 0;
  int64_t position = 0;
  PageGroupRef base = {};  // of its full pages; none: they are with the state
  std::optional<int32_t> pending = {};
  BoundId adapter = {};  // see ReadyState
  std::optional<StateAnswer> answer = {};
  std::vector<uint64_t> history = {};  // a bit for every id seen
  std::vector<int32_t> answer_ids = {};
  // The last tokens absorbed, 4 * id + form of each, and how many are before them, with a digest of
  // these. None, and none before them: they are not known.
  std::vector<uint32_t> tokens = {};
  int64_t tokens_first = 0;
  uint64_t tokens_before = 0;
  StateLayout layout = {};    // of the state: without the two arrays above
  int32_t vocab = INT32_MAX;  // ids are below it: of what is wanted alone, and not written

  // Pages that its base has.
  int64_t pages_in_base() const { return base.id == 0 ? 0 : position / kPageTokens; }
};

// The bytes in front of a state's pieces and behind them.
struct StateFrame {
  std::string front, back;
  size_t bytes(size_t state_bytes) const { return front.size() + state_bytes + back.size(); }
};
// image: of the header's layout. Pages that are in the header's base need not be in it.
StateFrame frame_of(const StateHeader& header, const StateImage& image);
// The bytes of the state between those: its pieces, which are the image's.
std::vector<std::string_view> written_parts(const StateHeader& header, const StateImage& image);
// Of a page group with the image's pages from `first` on that are full: what is in front of them,
// the pages, and what refers to the group.
struct PageGroup {
  std::string front;
  std::vector<std::string_view> pages;
  PageGroupRef ref;
};
// header: of the state; its base has the pages before `first`.
PageGroup page_group_of(const StateHeader& header, const StateImage& image, int64_t first,
                        uint64_t id);
// Tokens from a position on, as they are written.
std::string written_tokens(uint64_t id, int64_t first, const std::vector<uint32_t>& tokens);
// Bytes that so many tokens take there at most, or in an export.
size_t most_token_bytes(int32_t vocab, int64_t tokens);
// What a state may take so written, at most: its layout's and model's names, a history of a
// vocabulary of so many ids, an answer of so many, and the pages of so many tokens.
size_t most_written_bytes(const StateLayout& layout, int32_t vocab, int64_t answer_ids,
                          int64_t tokens = 0);

// Fills the span with the bytes from the offset on, which are there. Any thread, two at once where
// the state is large. Throws what it likes.
using ReadAt = std::function<void(uint64_t offset, std::span<std::byte> to)>;

// The header of what is written in so many bytes, its history and its answer's ids left out. Throws
// StateError.
StateHeader read_state_header(uint64_t bytes, const ReadAt& read);
// All of it. The state goes into `rooms`, those of the pieces that wanted's layout has for the
// tokens it has absorbed, once its header fits `wanted` in model, weights, chunk and layout, and
// its numbers are what those may be (state_values.h); when this throws, it may have been written in
// part.
//
// read_base: fills the rooms of all full pages of a state with a base; null: such a state is
// refused, as it is not complete.
using ReadBase = std::function<void(const PageGroupRef& base, const StateRooms& pages)>;
StateHeader read_state(uint64_t bytes, const ReadAt& read, const StateHeader& wanted,
                       const StateRooms& rooms, const ReadBase& read_base = nullptr);

// Reads from a page group those of the pages that it has, and returns its base. *end: the pages
// before that number are not read yet; those that remain then. Throws StateError: kStateLost where
// the group is damaged, kForeignState where it is another one than `wanted`.
PageGroupRef read_page_group(uint64_t bytes, const ReadAt& read, const PageGroupRef& wanted,
                             const StateRooms& pages, int64_t* end);
// Tokens, with their id, and the position of the first one. The ids are below vocab. Throws
// StateError.
StateHeader read_tokens(uint64_t bytes, const ReadAt& read, int32_t vocab);
// The id in the header of a state, a page group or tokens. Throws StateError.
uint64_t read_id(uint64_t bytes, const ReadAt& read);

// The header with the answer's ids, which must be below vocab, and without the state and the
// history; of which nothing is read.
StateHeader read_answer(uint64_t bytes, const ReadAt& read, int32_t vocab);

// All that decides where a state may be used, as text: model, weights, chunk and arrays.
std::string identity_text(const StateHeader& header);

// Refuses what begins as `front` does, if that has the header of a state and tells that it is none
// for this server, or lacks the pages that page groups have. Throws StateError.
void check_front(std::string_view front, const StateHeader& wanted, bool may_have_base = false);

// The checksum of the form.
uint64_t checksum_of(std::string_view bytes);

}  // namespace recurve
