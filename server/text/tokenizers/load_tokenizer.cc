#include <fmt/core.h>

#include <set>
#include <stdexcept>

#include "server/text/json/json_fields.h"
#include "server/text/sentencepiece/sentencepiece_tokenizer.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "server/text/world/world_tokenizer.h"

namespace recurve {
namespace {

namespace fs = std::filesystem;

// The path of rwkv_vocab_v20230424.txt, empty if there is none. Refuses several vocabularies, since
// no file tells which is the model's.
fs::path find_world_vocabulary(const fs::path& model_dir) {
  std::set<std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_dir, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rwkv_vocab") && name.ends_with(".txt")) found.insert(name);
  }
  if (found.size() > 1) {
    throw std::runtime_error(fmt::format("{}: expected one vocabulary, found {} and {}; remove one",
                                         model_dir.string(), *found.begin(),
                                         *std::next(found.begin())));
  }
  return found.empty() ? fs::path() : model_dir / *found.begin();
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& model_dir, const TokenFiles& others) {
  const fs::path json = model_dir / "tokenizer.json";
  const fs::path model = model_dir / "tokenizer.model";
  const bool has_model = fs::exists(model);
  if (fs::exists(json)) {
    try {
      return parse_tokenizer_json(read_text_file(json), json.string(), others);
    } catch (const UnsupportedTokenizer&) {
      if (!has_model) throw;
    }
  }
  if (has_model) {
    return parse_sentencepiece(read_text_file(model), model.string(), others);
  }
  const fs::path world = find_world_vocabulary(model_dir);
  if (!world.empty()) return parse_world_vocabulary(read_text_file(world), world.string());
  throw std::runtime_error(fmt::format(
      "{}: no tokenizer found, expected tokenizer.json, tokenizer.model or "
      "rwkv_vocab_v20230424.txt; give its folder with --tokenizer, or none for prompts of "
      "token ids",
      model_dir.string()));
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& model_dir) {
  return load_tokenizer(model_dir, read_token_files(model_dir));
}

void check_fits(const Tokenizer& tokenizer, int64_t vocab_rows, const fs::path& model_dir) {
  if (tokenizer.size() <= vocab_rows) return;
  throw std::runtime_error(
      fmt::format("{}: the tokenizer has {} ids, but the model's vocabulary only {} rows: give the "
                  "model's own with --tokenizer",
                  model_dir.string(), tokenizer.size(), vocab_rows));
}

}  // namespace recurve
