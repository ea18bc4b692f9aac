#pragma once
#include <span>
#include <string_view>

namespace recurve {

// A file of the page, as it was when the server was built: see embed.cmake.
struct PageFile {
  std::string_view name;
  std::string_view etag;  // with its quotes
  std::string_view content;
};
extern const std::span<const PageFile> kPageFiles;

}  // namespace recurve
