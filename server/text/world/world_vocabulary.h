#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// The vocabulary of RWKV's World models as its file has it, rwkv_vocab_v20230424.txt: a line for an
// entry,
//   ID LITERAL BYTES
// with LITERAL a string of Python ('...' or "..."), which is meant in UTF-8, or its bytes
// (b'...' or b"..."), and BYTES how many bytes that is. Literals may hold spaces.
// -> [id] the bytes, empty where there is no such id; id 0, which ends a text, is one of these.
// Throws std::runtime_error with one sentence that names the line: for what is not of this form,
// for an entry that is there twice, and where one of the 256 single bytes has none, without which
// there are texts that have no ids.
std::vector<std::string> read_world_vocabulary(std::string_view text);

}  // namespace recurve
