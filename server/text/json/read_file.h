#pragma once

#include <filesystem>
#include <string>

namespace recurve {

// A file of a tokenizer, whole. Throws std::runtime_error with a sentence that names it; also where
// it is larger than any such file is.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace recurve
