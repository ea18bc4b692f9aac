#include "server/encrypted_folder.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include "server/storage/file_names.h"

namespace recurve {
namespace {

constexpr const char* kKeyFile = "state-key";
constexpr const char* kNewKeyFile = "state-key.new";
constexpr std::string_view kMagic = "RCRVCRPT";
constexpr size_t kSalt = 16, kTag = 16, kLength = 4, kNonce = 12, kPiece = 64 << 10;
constexpr size_t kHead = kMagic.size() + kSalt;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// As a FileSystem says it.
[[noreturn]] void unreadable(const char* why) {
  throw std::system_error(EIO, std::generic_category(),
                          std::string("an encrypted file cannot be read: ") + why);
}

std::span<std::byte> bytes_of(std::string& text) { return std::as_writable_bytes(std::span(text)); }
uint8_t* raw(std::string& text) { return reinterpret_cast<uint8_t*>(text.data()); }
const uint8_t* raw(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(raw(bytes), static_cast<int>(count)) != 1) {
    fail("the system gives no random numbers to encrypt states with");
  }
  return bytes;
}

// AES-256-GCM with one key. One thread at a time.
class Cipher {
 public:
  explicit Cipher(const FolderKey& key) : key_(key), context_(EVP_CIPHER_CTX_new(), free_context) {
    if (context_ == nullptr) throw std::bad_alloc();
  }
  ~Cipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

  // What is encrypted, and its tag behind it.
  std::string seal(uint64_t number, std::string_view text) {
    std::string sealed(text.size() + kTag, '\0');
    int size = 0;
    const bool done = begin(number, true) &&
                      EVP_EncryptUpdate(context_.get(), raw(sealed), &size, raw(text),
                                        static_cast<int>(text.size())) == 1 &&
                      EVP_EncryptFinal_ex(context_.get(), raw(sealed) + size, &size) == 1 &&
                      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, kTag,
                                          raw(sealed) + text.size()) == 1;
    if (!done) fail("OpenSSL cannot encrypt a state");
    return sealed;
  }
  // False: these are not the bytes that were sealed with this key as that number.
  bool open(uint64_t number, std::string sealed, std::string* text) {
    if (sealed.size() < kTag) return false;
    text->resize(sealed.size() - kTag);
    int size = 0;
    return begin(number, false) &&
           EVP_DecryptUpdate(context_.get(), raw(*text), &size, raw(sealed),
                             static_cast<int>(text->size())) == 1 &&
           EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_SET_TAG, kTag,
                               raw(sealed) + text->size()) == 1 &&
           EVP_DecryptFinal_ex(context_.get(), raw(*text) + size, &size) == 1;
  }

 private:
  bool begin(uint64_t number, bool encrypts) {
    std::array<uint8_t, kNonce> nonce{};
    for (size_t i = 0; i < 8; ++i) nonce[i] = static_cast<uint8_t>(number >> 8 * i);
    return EVP_CipherInit_ex(context_.get(), EVP_aes_256_gcm(), nullptr, key_.data(), nonce.data(),
                             encrypts ? 1 : 0) == 1;
  }
  static constexpr auto free_context = [](EVP_CIPHER_CTX* context) {
    EVP_CIPHER_CTX_free(context);
  };

  FolderKey key_;
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(free_context)> context_;
};

FolderKey key_of_file(const FolderKey& folder, std::string_view salt) {
  FolderKey key;
  unsigned size = 0;
  const uint8_t* made = HMAC(EVP_sha256(), folder.data(), static_cast<int>(folder.size()),
                             raw(salt), salt.size(), key.data(), &size);
  if (made == nullptr || size != key.size()) fail("OpenSSL cannot make the key of a state");
  return key;
}

std::string length_of(size_t size) {
  std::string bytes(kLength, '\0');
  for (size_t i = 0; i < kLength; ++i) bytes[i] = static_cast<char>(size >> 8 * i);
  return bytes;
}

size_t length_from(std::string_view bytes) {
  size_t size = 0;
  for (size_t i = 0; i < kLength; ++i) size |= size_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
  return size;
}

class EncryptedWriter final : public FileSystem::Writer {
 public:
  EncryptedWriter(std::unique_ptr<FileSystem::Writer> file, const FolderKey& folder,
                  const std::string& salt)
      : file_(std::move(file)), cipher_(key_of_file(folder, salt)) {
    file_->append(std::string(kMagic) + salt);
  }
  void append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPiece);
      file_->append(length_of(piece.size()) + cipher_.seal(pieces_++, piece));
      bytes.remove_prefix(piece.size());
    }
  }
  void sync() override { file_->sync(); }

 private:
  const std::unique_ptr<FileSystem::Writer> file_;
  Cipher cipher_;
  uint64_t pieces_ = 0;  // each with a nonce of its own: none is written twice
};

// Of a file that may be growing.
class EncryptedReader final : public FileSystem::Reader {
 public:
  EncryptedReader(std::unique_ptr<FileSystem::Reader> file, const FolderKey& folder)
      : file_(std::move(file)) {
    if (file_->bytes() < kHead) return;  // it was cut off before it had a piece
    cipher_.emplace(key_of_file(folder, read_salt()));
  }

  uint64_t bytes() const override {
    const std::lock_guard lock(mutex_);
    look_further();
    return end_;
  }

  void read(uint64_t offset, std::span<std::byte> to) const override {
    const std::lock_guard lock(mutex_);
    // It may have grown since: then the bytes are there, and else reading them fails.
    while (offset + to.size() > end_) {
      if (!cipher_ || !find_piece(UINT64_MAX)) unreadable("it is shorter than it was");
    }
    auto at = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                               [](uint64_t wanted, const Piece& p) { return wanted < p.offset; });
    for (--at; !to.empty(); ++at) {
      open_piece(static_cast<size_t>(at - pieces_.begin()));
      const size_t from = offset - at->offset, size = std::min(to.size(), at->bytes - from);
      std::memcpy(to.data(), opened_.data() + from, size);
      to = to.subspan(size);
      offset += size;
    }
  }

 private:
  struct Piece {
    uint64_t offset = 0, at = 0;  // in what was written, in the file
    size_t bytes = 0;
  };

  std::string read_salt() const {
    std::string head(kHead, '\0');
    file_->read(0, bytes_of(head));
    if (!head.starts_with(kMagic)) unreadable("it is not encrypted");
    return head.substr(kMagic.size());
  }

  // Past the pieces that are known, as far as the file went when it was opened.
  void look_further() const {
    while (cipher_ && next_ + kLength + kTag <= file_->bytes() && find_piece(file_->bytes())) {
    }
  }

  // False where the next piece is not there, or goes beyond `most`.
  bool find_piece(uint64_t most) const {
    std::string length(kLength, '\0');
    file_->read(next_, bytes_of(length));
    const size_t size = length_from(length);
    if (size == 0 || size > kPiece || next_ + kLength + size + kTag > most) return false;
    pieces_.push_back({end_, next_ + kLength, size});
    end_ += size;
    next_ += kLength + size + kTag;
    return true;
  }

  void open_piece(size_t number) const {
    if (opened_number_ == number) return;
    opened_number_ = SIZE_MAX;
    std::string sealed(pieces_[number].bytes + kTag, '\0');
    file_->read(pieces_[number].at, bytes_of(sealed));
    if (!cipher_->open(number, std::move(sealed), &opened_)) {
      unreadable("its bytes are not those that were written");
    }
    opened_number_ = number;
  }

  const std::unique_ptr<FileSystem::Reader> file_;
  mutable std::mutex mutex_;              // of all below
  mutable std::optional<Cipher> cipher_;  // none: there is no piece
  mutable std::vector<Piece> pieces_;
  mutable uint64_t next_ = kHead, end_ = 0;
  mutable std::string opened_;  // the piece that was read last
  mutable size_t opened_number_ = SIZE_MAX;
};

// What a store writes; the folder has a lock too, and whatever else somebody has put there.
bool is_of_a_store(const FileSystem::Entry& entry) {
  std::string_view name = entry.name;
  if (name.starts_with(kSetAside)) name.remove_prefix(kSetAside.size());
  if (name.ends_with(kBeingMade)) name.remove_suffix(kBeingMade.size());
  return number_of(name, kJournalFile) > 0 || number_of(name, kSegmentFile) > 0 ||
         number_of(name, kStateFile) > 0;
}

class EncryptedFolder final : public FileSystem {
 public:
  EncryptedFolder(std::unique_ptr<FileSystem> folder, const FolderKey& key)
      : folder_(std::move(folder)), key_(key) {}
  ~EncryptedFolder() override { OPENSSL_cleanse(key_.data(), key_.size()); }

  std::vector<Entry> list() override {
    std::vector<Entry> found = folder_->list();
    std::erase_if(found, [](const Entry& entry) { return entry.name.starts_with(kKeyFile); });
    for (Entry& entry : found) {
      if (is_of_a_store(entry)) entry.bytes = open(entry.name)->bytes();
    }
    return found;
  }
  std::unique_ptr<Writer> create(const std::string& name) override {
    return std::make_unique<EncryptedWriter>(folder_->create(name), key_, random_bytes(kSalt));
  }
  std::unique_ptr<Reader> open(const std::string& name) override {
    return std::make_unique<EncryptedReader>(folder_->open(name), key_);
  }
  void rename(const std::string& from, const std::string& to) override {
    folder_->rename(from, to);
  }
  void remove(const std::string& name) override { folder_->remove(name); }
  void sync_folder() override { folder_->sync_folder(); }

 private:
  const std::unique_ptr<FileSystem> folder_;
  FolderKey key_;
};

std::string read_all(FileSystem& folder, const std::string& name) {
  const auto reader = folder.open(name);
  std::string text(reader->bytes(), '\0');
  reader->read(0, bytes_of(text));
  return text;
}

bool has(const std::vector<FileSystem::Entry>& files, std::string_view name) {
  return std::ranges::find(files, name, &FileSystem::Entry::name) != files.end();
}

// The folder's key, encrypted with another's first piece: salt, and what seal() gives.
void write_folder_key(FileSystem& folder, const FolderKey& key, const FolderKey& with) {
  const auto writer = folder.create(kNewKeyFile);
  const std::string salt = random_bytes(kSalt);
  const std::string_view text(reinterpret_cast<const char*>(key.data()), key.size());
  writer->append(std::string(kMagic) + salt + Cipher(key_of_file(with, salt)).seal(0, text));
  writer->sync();
  folder.rename(kNewKeyFile, kKeyFile);
  folder.sync_folder();
}

FolderKey open_folder_key(FileSystem& folder, const std::vector<FolderKey>& keys) {
  const std::string wrapped = read_all(folder, kKeyFile);
  std::string opened;
  for (size_t k = 0; wrapped.size() > kHead && k < keys.size(); ++k) {
    const std::string salt = wrapped.substr(kMagic.size(), kSalt);
    if (!Cipher(key_of_file(keys[k], salt)).open(0, wrapped.substr(kHead), &opened)) continue;
    FolderKey key;
    if (opened.size() != key.size()) break;
    std::copy_n(raw(std::string_view(opened)), key.size(), key.begin());
    OPENSSL_cleanse(opened.data(), opened.size());
    if (k > 0) write_folder_key(folder, key, keys.front());
    return key;
  }
  fail(
      "no key of --state-keys opens the states of --state-dir: put the one that they were written "
      "with into the file, behind the first");
}

FolderKey new_folder_key(FileSystem& folder, const std::vector<FolderKey>& keys) {
  FolderKey key;
  const std::string random = random_bytes(key.size());
  std::copy_n(raw(std::string_view(random)), key.size(), key.begin());
  write_folder_key(folder, key, keys.front());
  return key;
}

}  // namespace

std::vector<FolderKey> read_folder_keys(const std::string& path) {
  std::ifstream in(path);
  if (!in) fail(fmt::format("\"{}\" cannot be read: give another file with --state-keys", path));
  std::vector<FolderKey> keys;
  for (std::string line; std::getline(in, line);) {
    const bool right = line.size() == 2 * sizeof(FolderKey) &&
                       line.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!right) {
      fail(
          fmt::format("\"{}\" cannot be used with --state-keys: line {} must be 64 hexadecimal "
                      "digits, as `openssl rand -hex 32` writes them",
                      path, keys.size() + 1));
    }
    FolderKey& key = keys.emplace_back();
    for (size_t i = 0; i < key.size(); ++i) {
      key[i] = static_cast<uint8_t>(std::stoi(line.substr(2 * i, 2), nullptr, 16));
    }
  }
  if (keys.empty()) fail(fmt::format("\"{}\" has no key: --state-keys needs one", path));
  return keys;
}

bool is_encrypted(FileSystem& folder) { return has(folder.list(), kKeyFile); }

std::unique_ptr<FileSystem> encrypt_folder(std::unique_ptr<FileSystem> folder,
                                           const std::vector<FolderKey>& keys) {
  const std::vector<FileSystem::Entry> files = folder->list();
  const bool known = has(files, kKeyFile);
  if (!known && std::ranges::any_of(files, is_of_a_store)) {
    fail(
        "--state-dir has states that are not encrypted: take another folder with --state-keys, or "
        "leave it out");
  }
  const FolderKey key = known ? open_folder_key(*folder, keys) : new_folder_key(*folder, keys);
  return std::make_unique<EncryptedFolder>(std::move(folder), key);
}

}  // namespace recurve
