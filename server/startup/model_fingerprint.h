#pragma once
#include <filesystem>
#include <optional>
#include <string>

namespace recurve {

// What a model is, in 32 hexadecimal digits: its config and its weights as they are stored, for
// which Checkpoint::fingerprint() stands, and the files of its tokenizer, tokenizer.json and
// tokenizer.model. tokenizer_dir: where they are; none: ids are all the text there is.
std::string model_fingerprint(const std::string& checkpoint,
                              const std::optional<std::filesystem::path>& tokenizer_dir);

}  // namespace recurve
