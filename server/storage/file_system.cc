#include "server/storage/file_system.h"

namespace recurve {

void FileSystem::Writer::append_of(std::string_view /*tenant*/,
                                   std::span<const std::string_view> parts) {
  for (const std::string_view part : parts) append(part);
}

void FileSystem::Writer::append_from(const Reader& from, uint64_t offset, uint64_t bytes) {
  std::string copied(bytes, '\0');
  from.read(offset, std::as_writable_bytes(std::span(copied)));
  append(copied);
}

}  // namespace recurve
