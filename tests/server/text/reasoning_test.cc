#include "server/text/chat/reasoning.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

namespace recurve::reasoning_test {
namespace {

using Phase = ReasoningStart::Phase;

const ReasoningForm& think() { return *reasoning_form_of("<think>"); }

struct Parts {
  std::string reasoning, answer;
  bool operator==(const Parts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Parts& of) {
  return out << '"' << of.reasoning << "\", \"" << of.answer << '"';
}

Parts read(const std::vector<std::string>& pieces, ReasoningStart start) {
  ReasoningParser parser(think(), start);
  Parts parts;
  for (const std::string& piece : pieces) parser.feed(piece, &parts.reasoning, &parts.answer);
  parser.finish(&parts.reasoning, &parts.answer);
  return parts;
}

void expect(const std::string& text, const Parts& wanted, ReasoningStart start = {}) {
  EXPECT_EQ(read({text}, start), wanted) << text;
  std::vector<std::string> bytes;
  for (const char byte : text) bytes.emplace_back(1, byte);
  EXPECT_EQ(read(bytes, start), wanted) << text << ", byte by byte";
}

TEST(Reasoning, IsSeparatedFromTheAnswer) {
  expect("<think>\nhm\n</think>\n\nyes", {"hm", "yes"});
  expect("<think>hm</think>yes", {"hm", "yes"});
  expect("<think>\n\n</think>\n\nyes", {"", "yes"});
  expect("<think>\n\na\n\n</think>\n\n\nyes\n", {"\na\n", "\nyes\n"});
  expect("<think>a </thin <think></think>b<think>c</think>",
         {"a </thin <think>", "b<think>c</think>"});
  expect("<think>\xc3\xa9</think>\xe2\x82\xac", {"\xc3\xa9", "\xe2\x82\xac"});
}

TEST(Reasoning, AnAnswerWithoutItIsText) {
  for (const char* text : {"", "yes", " <think>no</think>", "<thinking>", "<thin", "\n\nyes"}) {
    expect(text, {"", text});
  }
}

TEST(Reasoning, ThatIsCutIsReasoning) {
  expect("<think>", {"", ""});
  expect("<think>\nhm\n</thi", {"hm\n</thi", ""});
  expect("<think>\nhm\n", {"hm\n", ""});
}

TEST(Reasoning, BeginsWhereThePromptSaysSo) {
  const auto start = [](std::string_view prompt) { return reasoning_start_of(think(), prompt); };
  EXPECT_EQ(start("assistant\n<think>\n").phase, Phase::kInside);
  EXPECT_EQ(start("assistant\n<think>").phase, Phase::kInside);
  EXPECT_EQ(start("assistant\n<think>\n\n</think>\n\n").phase, Phase::kOver);
  EXPECT_EQ(start("assistant\n").phase, Phase::kMayOpen);
  EXPECT_EQ(start("assistant\n").opened, 0u);
  EXPECT_EQ(start("Assistant: <think").opened, 6u);

  expect("hm\n</think>\n\nyes", {"hm", "yes"}, {.phase = Phase::kInside});
  expect("<think>yes</think>", {"", "<think>yes</think>"}, {.phase = Phase::kOver});
  expect(">\nhm\n</think>yes", {"hm", "yes"}, start("Assistant: <think"));
  expect("ing about it", {"", "ing about it"}, start("Assistant: <think"));
  expect("", {"", ""}, start("Assistant: <think"));
}

// However a text is divided, also within characters and tags, the parts are the same and hold each
// byte that is no tag and no line break at one.
TEST(Reasoning, DoesNotDependOnHowTheTextIsDivided) {
  std::mt19937 random(7);
  const std::vector<std::string> words = {
      "<think>",  "</think>",         "<",   "</",        "think", ">", "\n",
      "\xc3\xa9", "\xf0\x9f\x98\x80", "a b", "</think>\n"};
  const ReasoningStart starts[] = {
      {}, {.phase = Phase::kInside}, {.phase = Phase::kOver}, {.opened = 6}};
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (size_t n = random() % 10; n > 0; --n) text += words[random() % words.size()];
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 4;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const ReasoningStart start = starts[random() % std::size(starts)];
    const Parts whole = read({text}, start);
    ASSERT_EQ(read(pieces, start), whole) << text;
    // Nothing is added, and what is missing is at most the two tags and the line breaks at them.
    EXPECT_LE(whole.reasoning.size() + whole.answer.size(), text.size()) << text;
    EXPECT_GE(whole.reasoning.size() + whole.answer.size() + 15 + 4, text.size()) << text;
    EXPECT_TRUE(text.ends_with(whole.answer)) << text;
    EXPECT_NE(text.find(whole.reasoning), std::string::npos) << text;
  }
}

TEST(Reasoning, ItsFormIsFoundFromTheTemplate) {
  const auto of_file = [](const std::string& name) {
    std::ifstream file(std::string(RECURVE_SOURCE_DIR) + "/tests/golden/chat_template/" + name +
                       ".jinja");
    std::stringstream text;
    text << file.rdbuf();
    const ReasoningForm* form = reasoning_form_of(text.str());
    return form == nullptr ? "" : std::string(form->open);
  };
  for (const char* some : {"qwen_thinking", "think_words", "xml_tools"}) {
    EXPECT_EQ(of_file(some), "<think>") << some;
  }
  for (const char* none : {"chatml", "llama3", "gemma", "hermes_tools", "mistral_tools"}) {
    EXPECT_EQ(of_file(none), "") << none;
  }
}

}  // namespace
}  // namespace recurve::reasoning_test
