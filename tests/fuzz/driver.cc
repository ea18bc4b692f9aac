// Runs a libFuzzer target without libFuzzer: every file of a corpus folder, then random mutations
// of them until the time is up. Finds less than a coverage-guided run, but runs everywhere.
//   fuzz_NAME [--seconds S] CORPUS
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> read_corpus(const std::filesystem::path& folder) {
  std::vector<Bytes> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

Bytes mutate(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  for (size_t changes = 1 + below(8); changes > 0; --changes) {
    const size_t at = below(bytes.size() + 1);
    const auto where = bytes.begin() + static_cast<ptrdiff_t>(at);
    switch (below(5)) {
      case 0:  // a byte of its own
        if (at < bytes.size()) bytes[at] = static_cast<uint8_t>(random());
        break;
      case 1:  // a flipped bit
        if (at < bytes.size()) bytes[at] ^= static_cast<uint8_t>(1u << below(8));
        break;
      case 2:  // cut off
        bytes.resize(at);
        break;
      case 3:  // a piece repeated
        if (at < bytes.size()) {
          const Bytes piece(where, where + static_cast<ptrdiff_t>(
                                               1 + below(std::min<size_t>(64, bytes.size() - at))));
          bytes.insert(where, piece.begin(), piece.end());
        }
        break;
      default: {  // a piece of another input
        const Bytes& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        const size_t length = below(std::min<size_t>(64, other.size() - from) + 1);
        const auto piece = other.begin() + static_cast<ptrdiff_t>(from);
        bytes.insert(where, piece, piece + static_cast<ptrdiff_t>(length));
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else {
      folder = argv[i];
    }
  }
  std::vector<Bytes> corpus;
  if (std::filesystem::is_directory(folder)) corpus = read_corpus(folder);
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus in \"%s\"\n", folder.c_str());
    return 2;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());

  std::mt19937_64 random(20260101);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  size_t runs = corpus.size();
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    const Bytes bytes = mutate(corpus[random() % corpus.size()], corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs\n", runs);
  return 0;
}
