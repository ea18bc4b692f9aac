#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace recurve {

// A token that a file of the checkpoint names: by its name, or by its id.
struct StatedToken {
  std::string name;           // empty: by its id
  std::optional<int32_t> id;  // empty: by its name
  std::string file;           // "tokenizer_config.json"
  std::string key;            // "eos_token"
};

// What the files of a checkpoint say of control tokens. A token is one where any file says so:
//   tokenizer.json            it is an added token that is "special"
//   tokenizer.model           it is a piece of type CONTROL
//   tokenizer_config.json     {bos,eos,unk,sep,pad,cls,mask}_token, additional_special_tokens,
//   special_tokens_map.json   extra_special_tokens (a list, or an object of names), and what
//                             added_tokens_decoder calls special
//   config.json               eos_token_id, if the token is an added one or a piece of type
//   generation_config.json    USER_DEFINED: configs name ordinary words by mistake
// But an entry of the vocabulary that is a single character stays text. The same rule in
// weights_tools/tokenizer_info.py, for `inspect`; tests/golden/tokenizer/control.json has cases.
struct TokenFiles {
  std::optional<StatedToken> bos, eos;  // of the first file that names one
  std::vector<StatedToken> ends;        // eos_token of every file
  std::vector<StatedToken> control;     // names, and the ids of config.json and generation_config
};

// Of tokenizer_config.json and special_tokens_map.json. Throws std::runtime_error with a sentence
// that names the file.
TokenFiles read_token_files(const std::filesystem::path& model_dir);

// True for the entries of a vocabulary that stay text whatever is said of them: single characters.
bool is_one_character(const std::string& name);

}  // namespace recurve
