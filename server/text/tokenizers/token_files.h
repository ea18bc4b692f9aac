#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace recurve {

// A token that a file of the checkpoint gives by its name or its id.
struct NamedToken {
  std::string name;           // empty: given by id
  std::optional<int32_t> id;  // empty: given by name
  std::string file;           // "tokenizer_config.json"
  std::string key;            // "eos_token"
};

// The control tokens that the files of a checkpoint name. A token is one if any file says so:
//   tokenizer.json            an added token that is "special"
//   tokenizer.model           a piece of type CONTROL
//   tokenizer_config.json     {bos,eos,unk,sep,pad,cls,mask}_token, additional_special_tokens,
//   special_tokens_map.json   extra_special_tokens (a list, or an object of names), and the
//                             "special" ones of added_tokens_decoder
//   config.json               eos_token_id, if the token is an added one or a piece of type
//   generation_config.json    USER_DEFINED: configs name ordinary words by mistake
// An entry of the vocabulary that is a single character is always text. weights_tools/
// tokenizer_info.py implements the same rule for `inspect`; tests/golden/tokenizer/control.json has
// test cases.
struct TokenFiles {
  std::optional<NamedToken> bos, eos;  // of the first file that has one
  std::vector<NamedToken> ends;        // eos_token of every file
  std::vector<NamedToken> control;     // names, and ids of config.json and generation_config.json
};

// Reads tokenizer_config.json and special_tokens_map.json. Throws std::runtime_error, whose message
// names the file.
TokenFiles read_token_files(const std::filesystem::path& model_dir);

// Whether a name is a single character, which is always text.
bool is_one_character(const std::string& name);

}  // namespace recurve
