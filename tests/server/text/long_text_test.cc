// What any text of 16 MB may take (a quarter of it: a quarter): memory, time compared to prose, and
// time until a cancellation is seen. In quick builds, 2 MB and an eighth of the limits.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>

#include "server/text/characters.h"
#include "server/text/models/bpe_merger.h"
#include "server/text/sentencepiece/sentencepiece_tokenizer.h"
#include "server/text/tokenizers/tokenizer_json.h"
#include "tests/server/text/data.h"
#include "tests/support/amount.h"

namespace recurve::long_text_test {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr size_t kBytes = testing::kSanitized ? 128 << 10 : testing::kQuick ? 1 << 20 : 16 << 20;
constexpr size_t kQuarter = kBytes / 4;
constexpr bool kMeasures = !testing::kSanitized;

// A line of /proc/self/status, in bytes.
size_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    size_t kilobytes = 0;
    if (word == key + ":" && file >> kilobytes) return kilobytes << 10;
  }
  throw std::runtime_error("/proc/self/status has no " + key);
}

// The most memory that is resident from here on, beyond what is now.
class MemoryPeak {
 public:
  MemoryPeak() {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins anew
    before_ = status("VmRSS");
  }
  size_t bytes() const { return status("VmHWM") - std::min(before_, status("VmHWM")); }

 private:
  size_t before_;
};

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Of the processor.
double seconds_to_encode(const Tokenizer& tokenizer, const std::string& text) {
  const double begin = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  tokenizer.encode(text);
  return seconds_of(CLOCK_THREAD_CPUTIME_ID) - begin;
}

struct Kind {
  const char* name;
  char32_t first, last;  // characters at random
  size_t bytes = kQuarter;
};
constexpr Kind kKinds[] = {
    {"Digits", '0', '9'},        {"OneLetter", 'a', 'a'},   {"Letters", 'a', 'z'},
    {"Signs", '!', '~'},         {"Spaces", ' ', ' '},      {"Lines", '\n', '\n'},
    {"Tabs", '\t', '\t'},        {"Punctuation", '!', '/'}, {"Cjk", 0x4E00, 0x9FFF},
    {"OneCjk", 0x7684, 0x7684},  {"Marks", 0x300, 0x36F},   {"Emoji", 0x1F300, 0x1F6FF},
    {"Anything", 0x1, 0x10FFFF},
};

std::string make_text(const Kind& kind) {
  std::mt19937 random(1);
  std::string text;
  text.reserve(kind.bytes + 4);
  while (text.size() < kind.bytes) {
    const auto c = kind.first + static_cast<char32_t>(random() % (kind.last - kind.first + 1));
    if (c < 0xD800 || c > 0xDFFF) append_utf8(c, text);
  }
  return text;
}

// Words as people write them, of so many bytes.
std::string make_prose(size_t bytes) {
  constexpr std::string_view kProse =
      "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
      "must be in want of a wife. However little known the feelings or views of such a man may be "
      "on his first entering a neighbourhood, this truth is so well fixed in the minds of the "
      "surrounding families, that he is considered the rightful property of some one or other of "
      "their daughters.\n";
  std::string text;
  text.reserve(bytes + kProse.size());
  while (text.size() < bytes) text += kProse;
  return text;
}

using Shared = std::shared_ptr<const Tokenizer>;

// Loaded once: `load` is asked for what no test has asked for before.
Shared loaded(const std::string& name, const std::function<std::unique_ptr<Tokenizer>()>& load) {
  static std::map<std::string, Shared> all;
  Shared& one = all[name];
  if (!one) one = load();
  return one;
}

Shared sentencepiece(const std::filesystem::path& path) {
  return loaded(path, [&] { return parse_sentencepiece(testing::read_text(path), path.string()); });
}

std::filesystem::path books_model() {
  return std::filesystem::path(RECURVE_SOURCE_DIR) /
         "weights_tools/demo/xlstm-books/tokenizer.model";
}

std::unique_ptr<Tokenizer> load_byte_level() {
  const auto path = testing::golden_tokenizer_dir() / "tokenizer.json";
  Json json = Json::parse(testing::read_text(path));
  json["normalizer"] = {{"type", "NFC"}};
  return parse_tokenizer_json(json.dump(), path.string());
}

Shared byte_level() { return loaded("byte-level", load_byte_level); }

// The byte-level model behind another way to cut texts.
std::unique_ptr<Tokenizer> load_cut_by(const Json& pre_tokenizers) {
  Json json = Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "tokenizer.json"));
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", pre_tokenizers}};
  return parse_tokenizer_json(json.dump(), "long_text_test");
}

Json byte_alphabet(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}

Json isolated(const char* regex) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", regex}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

// As Falcon's tokenizer.json cuts: runs of signs, GPT-2's words, runs of digits, and those by
// three.
Shared cut_as_falcon() {
  return loaded("falcon", [] {
    const Json signs = {{"type", "Punctuation"}, {"behavior", "Contiguous"}};
    const Json digits = {{"type", "Digits"}, {"individual_digits", false}};
    return load_cut_by({signs, byte_alphabet(true), digits, isolated("[0-9][0-9][0-9]")});
  });
}

// As Llama 3's does.
Shared cut_as_llama3() {
  return loaded("llama3", [] {
    return load_cut_by(
        {isolated(R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"),
         byte_alphabet(false)});
  });
}

// A tokenizer of models.json.
std::unique_ptr<Tokenizer> load_golden(const std::string& name) {
  const Json golden =
      Json::parse(testing::read_text(testing::golden_tokenizer_dir() / "models.json"));
  for (const Json& one : golden["cases"]) {
    if (one["name"] != name) continue;
    Json json = one["tokenizer"];
    json["model"].update(golden["models"][one["model"].get<size_t>()]);
    return parse_tokenizer_json(json.dump(), name);
  }
  throw std::runtime_error("models.json has no " + name);
}

Shared golden(const std::string& name) {
  return loaded(name, [&] { return load_golden(name); });
}

// As T5's and XLM-R's are: a charsmap, then words cut by likelihood.
Shared precompiled() {
  return loaded("precompiled", [] {
    const auto path = testing::golden_tokenizer_dir() / "precompiled.json";
    const Json golden = Json::parse(testing::read_text(path));
    return parse_tokenizer_json(golden["tokenizer"].dump(), path.string());
  });
}

class LongText : public ::testing::TestWithParam<Kind> {
 protected:
  // As the server sets it (heap_trimmer.cc): what is large and freed does not stay resident.
  static void SetUpTestSuite() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

  void expect_bounded(const Tokenizer& tokenizer) const {
    const std::string text = make_text(GetParam());
    const MemoryPeak memory;
    double seconds = seconds_to_encode(tokenizer, text);
    RecordProperty("megabytes", std::to_string(memory.bytes() >> 20));
    if (!kMeasures) return;
    const auto bytes = static_cast<double>(text.size());
    EXPECT_LT(static_cast<double>(memory.bytes()), bytes * 300 / 16);

    // Compared to prose, as machines differ, and one machine from minute to minute: hence a second
    // try if it seems too long.
    const std::string prose = make_prose(256 << 10);
    const auto times_as_long = [&] {
      return seconds / bytes * static_cast<double>(prose.size()) /
             seconds_to_encode(tokenizer, prose);
    };
    constexpr double kMost = 4;  // the most that was measured on a quiet core is 2.4
    double times = times_as_long();
    for (int again = 0; again < 2 && times > kMost; ++again) {
      seconds = seconds_to_encode(tokenizer, text);
      times = times_as_long();
    }
    RecordProperty("times_as_long_as_prose", std::to_string(times));
    EXPECT_LT(times, kMost) << seconds << " s";
  }
};

TEST_P(LongText, ByteLevel) { expect_bounded(*byte_level()); }
TEST_P(LongText, CutAsFalcon) { expect_bounded(*cut_as_falcon()); }
TEST_P(LongText, CutAsLlama3) { expect_bounded(*cut_as_llama3()); }
TEST_P(LongText, BytesToFallBackTo) { expect_bounded(*golden("llama")); }
TEST_P(LongText, Unigram) { expect_bounded(*golden("unigram, no cuts")); }
TEST_P(LongText, Precompiled) { expect_bounded(*precompiled()); }
TEST_P(LongText, WordPiece) { expect_bounded(*golden("bert")); }

TEST_P(LongText, SentencePiece) {
  const auto path =
      testing::shared_data() / "tokenizers/mistral_instruct_tokenizer_240323.model.v3";
  RECURVE_NEEDS_DATA(path);
  expect_bounded(*sentencepiece(path));
}

// One that rewrites characters, collapses spaces, and has no pieces for bytes.
TEST_P(LongText, SentencePieceNormalized) {
  const auto path = testing::shared_data() / "tokenizers/sentencepiece_test_model.model";
  RECURVE_NEEDS_DATA(path);
  expect_bounded(*sentencepiece(path));
}

TEST_P(LongText, SentencePieceUnigram) { expect_bounded(*sentencepiece(books_model())); }

// The demo's pieces of one and of three dots leave three ways through a text of dots, of which none
// is the best before its end.
INSTANTIATE_TEST_SUITE_P(NothingIsCertain, LongText,
                         ::testing::Values(Kind{"Dots", '.', '.', kBytes}),
                         [](const auto& info) { return info.param.name; });
// No other kind takes more of as many tokenizers.
INSTANTIATE_TEST_SUITE_P(Whole, LongText, ::testing::Values(Kind{"Signs", '!', '~', kBytes}),
                         [](const auto& info) { return info.param.name; });

// The CPU time that the work takes after it is cancelled; it is cancelled after so many seconds of
// CPU time.
double seconds_taken_on(const Tokenizer& tokenizer, const std::string& text, double after) {
  std::atomic<bool> unwanted = false, over = false;
  double end = 0;
  std::promise<clockid_t> started;
  std::promise<void> go_on;
  std::thread work([&] {
    clockid_t clock{};
    pthread_getcpuclockid(pthread_self(), &clock);
    started.set_value(clock);
    try {
      tokenizer.encode(text, SpecialTokens::kAsText, TextPosition::kStart, {&unwanted});
    } catch (const WorkUnwanted&) {
    }
    end = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    over = true;
    go_on.get_future().wait();  // the clock is there as long as the thread
  });
  const clockid_t clock = started.get_future().get();
  while (!over && seconds_of(clock) < after) {  // of its time, which no clock here can be set by
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const double begin = seconds_of(clock);
  unwanted = true;
  go_on.set_value();
  work.join();
  return end - begin;
}

// The work ends soon after it is cancelled, at any stage.
TEST_P(LongText, IsGivenUp) {
  const std::string text = make_text(GetParam());
  for (const Shared& tokenizer : {byte_level(), cut_as_falcon(), cut_as_llama3()}) {
    for (const double after : {0.03, 0.15, 0.4}) {
      const double seconds = seconds_taken_on(*tokenizer, text, after);
      RecordProperty("seconds", std::to_string(seconds));
      if (kMeasures) {
        EXPECT_LT(seconds, 0.05);
      }
    }
  }
}
// The limit ends the work where it is reached, not where the text ends.
TEST_P(LongText, OfTooManyTokensIsRefusedEarly) {
  const auto tokenizer = byte_level();
  Kind kind = GetParam();
  kind.bytes /= 2;
  const std::string text = make_text(kind);
  const size_t all = tokenizer->encode(text).size();
  const auto encode = [&](size_t most) {
    return tokenizer->encode(text, SpecialTokens::kAsText, TextPosition::kStart, {nullptr, most});
  };
  EXPECT_EQ(encode(all).size(), all);
  EXPECT_THROW(encode(all - 1), TooManyTokens);
  EXPECT_THROW(encode(100), TooManyTokens);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LongText, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param.name; });

// A piece of one split that others cut again goes through them in parts where it is long.
TEST(LongPieces, AreCutAsShortOnesAre) {
  const auto tokenizer = cut_as_falcon();
  std::mt19937 random(3);
  std::string text;
  Ids wanted;
  while (text.size() < 300'000) {
    std::string part;  // ends where a word ends
    while (part.size() < 3000) {
      for (int i = 0; i < 3; ++i) part.push_back(static_cast<char>('0' + random() % 10));
      if (random() % 4 == 0) part += " \u00e9t\u00e9";
      if (random() % 4 == 0) part += ' ';
    }
    part += " end\n";
    text += part;
    const Ids ids = tokenizer->encode(part);
    wanted.insert(wanted.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer->encode(text), wanted);
}

class Symbols final : public SymbolSource {
 public:
  explicit Symbols(const Ids& word) : word_(word) {}
  bool read(size_t size, Ids* symbols) override {
    while (at_ < word_.size() && symbols->size() < size) symbols->push_back(word_[at_++]);
    return at_ < word_.size();
  }
  void rewind() override { at_ = 0; }

 private:
  const Ids& word_;
  size_t at_ = 0;
};

// Rules of a BPE as they come, in any order of ranks.
struct Rules {
  std::map<std::pair<int32_t, int32_t>, std::pair<int32_t, int32_t>> of_pair;  // rank, merged
  BpeMerger merger;
};

Rules random_rules(std::mt19937& random, int32_t letters) {
  Rules rules;
  std::vector<size_t> lengths(static_cast<size_t>(letters), 1);
  std::vector<int32_t> ranks(40);
  std::iota(ranks.begin(), ranks.end(), 0);
  if (random() % 2 == 0) std::shuffle(ranks.begin(), ranks.end(), random);
  for (const int32_t rank : ranks) {
    const auto next = static_cast<int32_t>(lengths.size());
    const auto left = static_cast<int32_t>(random() % lengths.size());
    const auto right = static_cast<int32_t>(random() % lengths.size());
    const size_t length = lengths[static_cast<size_t>(left)] + lengths[static_cast<size_t>(right)];
    if (length > 60 || !rules.of_pair.try_emplace({left, right}, rank, next).second) continue;
    rules.merger.add_rule(left, right, rank, next);
    lengths.push_back(length);
  }
  return rules;
}

// Sennrich et al. 2016, algorithm 1, as it stands there.
Ids slowly_merged(const Rules& rules, Ids word) {
  while (true) {
    size_t best = word.size();
    std::pair<int32_t, int32_t> rule{INT32_MAX, 0};
    for (size_t i = 0; i + 1 < word.size(); ++i) {
      const auto found = rules.of_pair.find({word[i], word[i + 1]});
      if (found == rules.of_pair.end() || found->second.first >= rule.first) continue;
      best = i;
      rule = found->second;
    }
    if (best == word.size()) return word;
    word[best] = rule.second;
    word.erase(word.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// Merged in windows, a word has the ids of a merge in one, whatever the order of the rules.
TEST(LongWords, WindowsChangeNothing) {
  std::mt19937 random(2);
  for (size_t run = 0; run < testing::amount(200, 30); ++run) {
    const auto letters = static_cast<int32_t>(2 + random() % 3);
    const Rules rules = random_rules(random, letters);
    Ids word(testing::amount(2500, 1200));
    const uint32_t run_length = 1 + random() % 50;
    for (size_t i = 0; i < word.size(); ++i) {
      const bool repeats = i > 0 && random() % run_length != 0;
      word[i] =
          repeats ? word[i - 1] : static_cast<int32_t>(random() % static_cast<uint32_t>(letters));
    }
    Symbols symbols(word);
    BpeMerger::Workspace work;
    Ids merged;
    rules.merger.merge(symbols, work, {}, merged);
    ASSERT_EQ(merged, slowly_merged(rules, word)) << run;
  }
}

}  // namespace recurve::long_text_test
