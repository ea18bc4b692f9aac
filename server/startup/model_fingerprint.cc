#include "server/startup/model_fingerprint.h"

#include <vector>

#include "model/weights/fingerprint.h"
#include "server/text/json/json_fields.h"

namespace recurve {

std::string model_fingerprint(const std::string& checkpoint,
                              const std::optional<std::filesystem::path>& tokenizer_dir) {
  std::vector<std::string> texts = {checkpoint};
  if (tokenizer_dir.has_value()) {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      const auto file = *tokenizer_dir / name;
      texts.push_back(exists(file) ? read_text_file(file) : "");
    }
  }
  return fingerprint_of(texts);
}

}  // namespace recurve
