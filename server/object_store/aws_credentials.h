#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace recurve {

// Keys for requests to an object store. They are never logged, nor part of a message.
struct AwsCredentials {
  std::string key_id = {}, secret = {};
  std::string session_token = {};  // empty: none
  std::optional<std::chrono::system_clock::time_point> expires = {};
};

// What AWS's tools read from the environment.
struct AwsEnvironment {
  std::string key_id = {}, secret = {}, session_token = {};   // AWS_ACCESS_KEY_ID, ...
  std::string role = {}, role_session = {}, token_file = {};  // AWS_ROLE_ARN, ...
  std::string credentials_file = {};  // AWS_SHARED_CREDENTIALS_FILE, or ~/.aws/credentials
  std::string profile = {};           // AWS_PROFILE, or "default"
  std::string region = {};            // AWS_REGION, AWS_DEFAULT_REGION, or "us-east-1"
  std::string ca_file = {};           // AWS_CA_BUNDLE; empty: the system's

  using Get = std::function<const char*(const char* name)>;
  static AwsEnvironment read(const Get& get);
};

class HttpClient;

// Where credentials come from. Any thread.
class AwsCredentialSource {
 public:
  virtual ~AwsCredentialSource() = default;
  // Credentials that have not expired. Throws std::runtime_error with a sentence.
  virtual AwsCredentials current() = 0;
  // The store has refused these as expired or unknown: they are read again before they are used
  // again, if they can change.
  virtual void refuse(const AwsCredentials& refused) = 0;
};

// The first that the environment names: its keys; the web identity in token_file, for which the
// security token service at sts_endpoint gives keys that are renewed before they expire; the
// profile in credentials_file, which is read again when it changes. sts_endpoint: empty for AWS's
// own of the region. The client outlives the source.
std::unique_ptr<AwsCredentialSource> find_aws_credentials(const AwsEnvironment& environment,
                                                          std::string sts_endpoint,
                                                          HttpClient& http);

}  // namespace recurve
