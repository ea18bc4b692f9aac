#pragma once
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace recurve::testing {

// A certificate that signs itself, for "localhost", and its key, as files of PEM in `folder`.
class TlsCertificate {
 public:
  explicit TlsCertificate(const std::filesystem::path& folder)
      : certificate((folder / "cert.pem").string()), key((folder / "key.pem").string()) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> pair(EVP_EC_gen("P-256"),
                                                                   EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> made(X509_new(), X509_free);
    X509_set_version(made.get(), X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
    X509_set_pubkey(made.get(), pair.get());
    X509_NAME* name = X509_get_subject_name(made.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("localhost"), -1, -1, 0);
    X509_set_issuer_name(made.get(), name);
    EXPECT_NE(X509_sign(made.get(), pair.get(), EVP_sha256()), 0);
    const File certificate_file(std::fopen(certificate.c_str(), "w"), std::fclose);
    const File key_file(std::fopen(key.c_str(), "w"), std::fclose);
    EXPECT_EQ(PEM_write_X509(certificate_file.get(), made.get()), 1);
    EXPECT_EQ(
        PEM_write_PrivateKey(key_file.get(), pair.get(), nullptr, nullptr, 0, nullptr, nullptr), 1);
  }

  const std::string certificate, key;

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
};

}  // namespace recurve::testing
