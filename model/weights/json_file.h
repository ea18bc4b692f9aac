#pragma once
#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace recurve {

inline constexpr int kMaxJsonDepth = 64;
inline constexpr size_t kMaxConfigBytes = 16 << 20;
inline constexpr size_t kMaxIndexBytes = 100'000'000;

// Reads a JSON object. Refuses, with one sentence that names the file: what is no regular file or
// cannot be read, more than max_bytes, invalid JSON, anything but an object at the top, more than
// kMaxJsonDepth levels, and a key that occurs twice in one object (parsers differ on which counts).
// One thing beyond JSON is taken: the values Infinity and -Infinity, which Python writes and which
// every config.json of Mamba-2 holds. They become numbers.
nlohmann::json read_json_file(const std::filesystem::path& path, size_t max_bytes);
nlohmann::json parse_json_object(std::string_view text, const std::string& file);

}  // namespace recurve
