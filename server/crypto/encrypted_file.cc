#include "server/crypto/encrypted_file.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace recurve {
namespace {

constexpr std::string_view kMagic = "RCRVCRP2", kPreviousMagic = "RCRVCRPT";
constexpr size_t kLength = 4, kPiece = 64 << 10, kKeyId = 16;
constexpr size_t kHead = kMagic.size() + kSaltBytes;
constexpr uint32_t kPartHeader = uint32_t{1} << 31, kOfTenant = uint32_t{1} << 30;

// Reports damage as a FileSystem does.
[[noreturn]] void unreadable(const char* why) {
  throw FileDamaged(EIO, std::generic_category(),
                    std::string("an encrypted file cannot be read: ") + why);
}

std::span<std::byte> bytes_of(std::string& text) { return std::as_writable_bytes(std::span(text)); }

std::string length_of(size_t size, uint32_t flags) {
  std::string bytes(kLength, '\0');
  for (size_t i = 0; i < kLength; ++i) bytes[i] = static_cast<char>((size | flags) >> 8 * i);
  return bytes;
}

uint32_t length_from(std::string_view bytes) {
  uint32_t size = 0;
  for (size_t i = 0; i < kLength; ++i) size |= uint32_t{static_cast<uint8_t>(bytes[i])} << 8 * i;
  return size;
}

// Whether the file ended before its first piece. After a power failure it may end in zeros.
bool is_incomplete(std::string_view head) {
  const std::string_view written = head.substr(0, head.find_last_not_of('\0') + 1);
  return head.size() < kHead || kMagic.starts_with(written) || kPreviousMagic.starts_with(written);
}

// The text that starts a tenant's part.
struct PartHeader {
  std::string salt, id, tenant;

  std::string text() const { return salt + id + tenant; }
  static PartHeader from(const std::string& text) {
    if (text.size() < kSaltBytes + kKeyId) unreadable("the header of a tenant's part is too short");
    return {text.substr(0, kSaltBytes), text.substr(kSaltBytes, kKeyId),
            text.substr(kSaltBytes + kKeyId)};
  }
};

class EncryptedReader final : public FileSystem::Reader {
 public:
  EncryptedReader(std::unique_ptr<FileSystem::Reader> file, const SecretKey& folder,
                  TenantKeys& tenants)
      : file_(std::move(file)), tenants_(tenants) {
    std::string head(std::min<uint64_t>(file_->bytes(), kHead), '\0');
    file_->read(0, bytes_of(head));
    if (is_incomplete(head)) return;
    flags_ = head.starts_with(kMagic) ? kPartHeader | kOfTenant : 0;
    if (flags_ == 0 && !head.starts_with(kPreviousMagic)) {
      throw NotEncrypted(EIO, std::generic_category(),
                         "it is not an encrypted file of a known version");
    }
    cipher_.emplace(derived_key(folder, head.substr(kMagic.size())));
  }

  uint64_t bytes() const override {
    const std::lock_guard lock(mutex_);
    find_pieces();
    return end_;
  }

  void read(uint64_t offset, std::span<std::byte> to) const override {
    const std::lock_guard lock(mutex_);
    auto at = piece_at(offset, to.size());
    // A read from the start of a tenant's part checks again whether the key exists.
    if (!to.empty() && at->part != kNoPart && at->number == 0) {
      opened_part_ = kNoPart;
      opened_number_ = SIZE_MAX;
    }
    for (; !to.empty(); ++at) {
      open_piece(static_cast<size_t>(at - pieces_.begin()));
      const size_t from = offset - at->offset, size = std::min(to.size(), at->bytes - from);
      std::memcpy(to.data(), opened_.data() + from, size);
      to = to.subspan(size);
      offset += size;
    }
  }

  void read_what_is_whole(uint64_t offset, std::span<std::byte> to) const override {
    const std::lock_guard lock(mutex_);
    for (auto at = piece_at(offset, to.size()); !to.empty(); ++at) {
      const size_t from = offset - at->offset, size = std::min(to.size(), at->bytes - from);
      try {
        open_piece(static_cast<size_t>(at - pieces_.begin()));
        std::memcpy(to.data(), opened_.data() + from, size);
      } catch (const std::system_error&) {
        std::memset(to.data(), 0, size);
      }
      to = to.subspan(size);
      offset += size;
    }
  }

  // A tenant's pieces as they are in the file; nothing if the bytes belong to no tenant.
  struct Sealed {
    PartHeader header;
    std::string pieces;
  };
  std::optional<Sealed> sealed(uint64_t offset, uint64_t bytes) const {
    const std::lock_guard lock(mutex_);
    if (bytes == 0) return std::nullopt;
    const auto first = piece_at(offset, bytes);
    auto last = first;
    bool same = true;
    while (last->offset + last->bytes < offset + bytes) same &= (++last)->part == first->part;
    const bool no_tenant = first->part == kNoPart;
    const bool whole = no_tenant || (first->offset == offset && first->number == 0 &&
                                     last->offset + last->bytes == offset + bytes);
    if (!same || !whole) unreadable("the bytes are not exactly one part");
    if (no_tenant) return std::nullopt;
    Sealed found{header_of(first->part), {}};
    const uint64_t from = first->at - kLength;
    found.pieces.resize(last->at + last->bytes + kTagBytes - from);
    file_->read(from, bytes_of(found.pieces));
    return found;
  }

 private:
  static constexpr size_t kNoPart = SIZE_MAX;
  struct Piece {
    uint64_t offset = 0, at = 0;  // in the decrypted content, in the file
    size_t bytes = 0;
    uint64_t number = 0;    // that it is sealed as
    size_t part = kNoPart;  // in parts_
  };
  // The header of a tenant's part.
  struct Part {
    uint64_t at = 0, number = 0;
    size_t bytes = 0;
  };
  using Pieces = std::vector<Piece>;

  // The piece in which the bytes start. Finds pieces that were appended since; reading beyond the
  // end fails.
  Pieces::const_iterator piece_at(uint64_t offset, uint64_t bytes) const {
    while (offset + bytes > end_) {
      if (!cipher_ || !find_piece(UINT64_MAX)) unreadable("it is too short");
    }
    const auto after =
        std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                         [](uint64_t wanted, const Piece& p) { return wanted < p.offset; });
    return bytes == 0 ? pieces_.end() : after - 1;
  }

  // Finds all pieces of the file as it is now.
  void find_pieces() const {
    while (cipher_ && next_ + kLength + kTagBytes <= file_->bytes() && find_piece(file_->bytes())) {
    }
  }

  // False: the next piece is missing, malformed or ends after `most`.
  bool find_piece(uint64_t most) const {
    std::string length(kLength, '\0');
    file_->read(next_, bytes_of(length));
    const uint32_t flags = length_from(length) & flags_;
    const size_t size = length_from(length) & ~flags_;
    if (size == 0 || size > kPiece || next_ + kLength + size + kTagBytes > most) return false;
    if (flags == kPartHeader) {
      parts_.push_back({.at = next_ + kLength, .number = numbers_++, .bytes = size});
      in_part_ = 0;
    } else if (flags == 0 || (flags == kOfTenant && !parts_.empty())) {
      const bool no_tenant = flags == 0;
      pieces_.push_back({.offset = end_,
                         .at = next_ + kLength,
                         .bytes = size,
                         .number = no_tenant ? numbers_++ : in_part_++,
                         .part = no_tenant ? kNoPart : parts_.size() - 1});
      end_ += size;
    } else {
      return false;
    }
    next_ += kLength + size + kTagBytes;
    return true;
  }

  std::string sealed_at(uint64_t at, size_t bytes) const {
    std::string sealed(bytes + kTagBytes, '\0');
    file_->read(at, bytes_of(sealed));
    return sealed;
  }

  PartHeader header_of(size_t number) const {
    const Part& part = parts_[number];
    std::string text;
    if (!cipher_->open(part.number, sealed_at(part.at, part.bytes), &text)) changed();
    return PartHeader::from(text);
  }

  // The cipher of a part's pieces. Throws if its key is missing.
  Cipher& cipher_of(size_t part) const {
    if (part == kNoPart) return *cipher_;
    if (opened_part_ != part) {
      opened_part_ = kNoPart;
      const PartHeader header = header_of(part);
      part_cipher_.emplace(
          derived_key(tenants_.for_reading(header.id, header.tenant), header.salt));
      opened_part_ = part;
    }
    return *part_cipher_;
  }

  void open_piece(size_t number) const {
    if (opened_number_ == number) return;
    opened_number_ = SIZE_MAX;
    const Piece& piece = pieces_[number];
    if (!cipher_of(piece.part).open(piece.number, sealed_at(piece.at, piece.bytes), &opened_)) {
      changed();
    }
    opened_number_ = number;
  }

  [[noreturn]] static void changed() { unreadable("it was modified"); }

  const std::unique_ptr<FileSystem::Reader> file_;
  TenantKeys& tenants_;
  uint32_t flags_ = 0;  // of the file's version

  mutable std::mutex mutex_;              // guards the members below
  mutable std::optional<Cipher> cipher_;  // none: the file has no piece
  mutable Pieces pieces_;
  mutable std::vector<Part> parts_;
  mutable uint64_t next_ = kHead, end_ = 0;
  mutable uint64_t numbers_ = 0, in_part_ = 0;  // of the next piece
  mutable std::string opened_;                  // the piece read last
  mutable size_t opened_number_ = SIZE_MAX;
  mutable std::optional<Cipher> part_cipher_;  // of opened_part_
  mutable size_t opened_part_ = kNoPart;
};

class EncryptedWriter final : public FileSystem::Writer {
 public:
  EncryptedWriter(std::unique_ptr<FileSystem::Writer> file, const SecretKey& folder,
                  TenantKeys& tenants)
      : EncryptedWriter(std::move(file), folder, tenants, random_bytes(kSaltBytes)) {}

  void append(std::string_view bytes) override { append(bytes, cipher_, &numbers_, 0); }
  void append_of(std::string_view tenant, std::span<const std::string_view> parts) override {
    if (tenant.empty()) return Writer::append_of(tenant, parts);
    const TenantKey key = tenants_.for_writing(tenant);
    const PartHeader header{random_bytes(kSaltBytes), key.id, key.tenant};
    append(header);
    Cipher cipher(derived_key(key.key, header.salt));
    uint64_t number = 0;
    for (const std::string_view part : parts) append(part, cipher, &number, kOfTenant);
  }
  void append_from(const FileSystem::Reader& from, uint64_t offset, uint64_t bytes) override {
    const auto* reader = dynamic_cast<const EncryptedReader*>(&from);
    const auto sealed = reader == nullptr ? std::nullopt : reader->sealed(offset, bytes);
    if (!sealed) return Writer::append_from(from, offset, bytes);
    append(sealed->header);
    file_->append(sealed->pieces);
  }
  void sync() override { file_->sync(); }

 private:
  EncryptedWriter(std::unique_ptr<FileSystem::Writer> file, const SecretKey& folder,
                  TenantKeys& tenants, const std::string& salt)
      : file_(std::move(file)), tenants_(tenants), cipher_(derived_key(folder, salt)) {
    file_->append(std::string(kMagic) + salt);
  }
  void append(const PartHeader& header) { append(header.text(), cipher_, &numbers_, kPartHeader); }
  // Each piece has a different number: no number is used twice with one key.
  void append(std::string_view bytes, Cipher& cipher, uint64_t* number, uint32_t flags) {
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPiece);
      file_->append(length_of(piece.size(), flags) + cipher.seal((*number)++, piece));
      bytes.remove_prefix(piece.size());
    }
  }

  const std::unique_ptr<FileSystem::Writer> file_;
  TenantKeys& tenants_;
  Cipher cipher_;
  uint64_t numbers_ = 0;
};

}  // namespace

std::unique_ptr<FileSystem::Writer> encrypt_writer(std::unique_ptr<FileSystem::Writer> file,
                                                   const SecretKey& folder, TenantKeys& tenants) {
  return std::make_unique<EncryptedWriter>(std::move(file), folder, tenants);
}

std::unique_ptr<FileSystem::Reader> decrypt_reader(std::unique_ptr<FileSystem::Reader> file,
                                                   const SecretKey& folder, TenantKeys& tenants) {
  return std::make_unique<EncryptedReader>(std::move(file), folder, tenants);
}

}  // namespace recurve
