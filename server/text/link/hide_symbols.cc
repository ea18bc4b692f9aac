// Copies a shared library and hides the symbols it defines whose names contain a text.
//   hide_symbols IN OUT TEXT
//
// Debian's libsentencepiece carries a private copy of an old protobuf and exports it under the same
// names as libprotobuf. In one process with gRPC each then calls into the other's and crashes. The
// dynamic linker neither offers hidden symbols to other libraries nor looks for them outside their
// own, so hiding that copy in a copy of the library keeps the two apart, whatever the link order.
#include <elf.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

namespace {

// Number of symbols hidden, or -1 if this is no 64-bit ELF file with a dynamic symbol table.
int hide(std::vector<char>& file, std::string_view text) {
  const auto fits = [&](uint64_t offset, uint64_t size) {
    return offset <= file.size() && size <= file.size() - offset;
  };
  if (!fits(0, sizeof(Elf64_Ehdr)) || std::memcmp(file.data(), ELFMAG, SELFMAG) != 0) return -1;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  if (header->e_ident[EI_CLASS] != ELFCLASS64 ||
      !fits(header->e_shoff, uint64_t{header->e_shnum} * sizeof(Elf64_Shdr))) {
    return -1;
  }
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  for (int s = 0; s < header->e_shnum; ++s) {
    const Elf64_Shdr& table = sections[s];
    if (table.sh_type != SHT_DYNSYM || table.sh_link >= header->e_shnum) continue;
    const Elf64_Shdr& names = sections[table.sh_link];
    if (!fits(table.sh_offset, table.sh_size) || !fits(names.sh_offset, names.sh_size)) return -1;
    auto* symbols = reinterpret_cast<Elf64_Sym*>(file.data() + table.sh_offset);
    int hidden = 0;
    for (uint64_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
      if (symbols[i].st_shndx == SHN_UNDEF || symbols[i].st_name >= names.sh_size) continue;
      const char* name = file.data() + names.sh_offset + symbols[i].st_name;
      const size_t room = names.sh_size - symbols[i].st_name;
      if (std::string_view(name, strnlen(name, room)).find(text) == std::string_view::npos)
        continue;
      symbols[i].st_other = static_cast<unsigned char>((symbols[i].st_other & ~3) | STV_HIDDEN);
      ++hidden;
    }
    return hidden;
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: hide_symbols IN OUT TEXT\n");
    return 2;
  }
  std::ifstream in(argv[1], std::ios::binary);
  std::vector<char> file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const int hidden = hide(file, argv[3]);
  if (hidden < 0) {
    std::fprintf(stderr, "%s: wanted a 64-bit ELF library with dynamic symbols\n", argv[1]);
    return 1;
  }
  std::ofstream(argv[2], std::ios::binary)
      .write(file.data(), static_cast<std::streamsize>(file.size()));
  std::printf("%s: %d symbols with \"%s\" hidden\n", argv[2], hidden, argv[3]);
  return 0;
}
