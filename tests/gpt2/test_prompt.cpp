#include <filesystem>
#include <fstream>

#include "common/base/error.hpp"
#include "data/corpus.hpp"
#include "gpt2/prompt.hpp"
#include "tests/catch.hpp"

namespace rankwise {
namespace {

TEST_CASE("prompt_of: the option, the file, or a line end")
{
  const ByteTokenizer bytes;
  TrainingOptions options;
  CHECK(prompt_of(options, bytes) == std::vector<Token>{'\n'});
  options.prompt = "ab";
  CHECK(prompt_of(options, bytes) == std::vector<Token>{'a', 'b'});
  options.prompt_file = std::filesystem::temp_directory_path() / "rankwise_prompt_of.txt";
  std::ofstream(options.prompt_file) << "text\n";
  take_prompt(options);
  CHECK(prompt_of(options, bytes) == std::vector<Token>{'t', 'e', 'x', 't', '\n'});
  std::ofstream(options.prompt_file) << "\xEF\xBB\xBFtext\n";
  take_prompt(options);
  CHECK(prompt_of(options, bytes) == std::vector<Token>{'t', 'e', 'x', 't', '\n'});
  std::ofstream(options.prompt_file) << std::string("\xFF\xFEt\0", 4);
  CHECK_THROWS_WITH(take_prompt(options), Contains("looks like UTF-16"));
  std::ofstream(options.prompt_file) << std::string("a\0\xE9", 3);  // a model of bytes may be asked for any
  take_prompt(options);
  CHECK(prompt_of(options, bytes) == std::vector<Token>{'a', 0, 0xE9});
  std::ofstream(options.prompt_file, std::ios::trunc).flush();
  CHECK_THROWS_WITH(take_prompt(options), Contains("is empty"));
  std::ofstream(options.prompt_file) << std::string(1'000'001, 'x');
  CHECK_THROWS_WITH(take_prompt(options), Contains("more than 1,000,000 bytes"));
  std::filesystem::remove(options.prompt_file);
  CHECK_THROWS_WITH(take_prompt(options), Contains("does not exist"));
  options.prompt_file = std::filesystem::temp_directory_path();
  CHECK_THROWS_AS(take_prompt(options), UserError);
}

TEST_CASE("stop_token: the text of one token")
{
  const ByteTokenizer bytes;
  TrainingOptions options;
  CHECK_FALSE(stop_token(options, bytes).has_value());
  options.stop = ".";
  CHECK(stop_token(options, bytes) == Token{'.'});
  options.stop = "end";
  CHECK_THROWS_WITH(stop_token(options, bytes), Contains("--stop=end is 3 tokens"));
}

TEST_CASE("check_prompt: refuses tokens that the model does not know")
{
  TrainingOptions options;
  options.sample = 3;
  const Tokens tokens = embedded_corpus();
  CHECK_NOTHROW(check_prompt(options, tokens));
  options.vocabulary = 64;
  CHECK_NOTHROW(check_prompt(options, tokens));
  options.prompt = "x";
  CHECK_THROWS_WITH(check_prompt(options, tokens),
                    Contains("the token 120, which is outside the model's vocabulary"));
  options.prompt = "!";
  options.stop = "z";
  CHECK_THROWS_WITH(check_prompt(options, tokens), Contains("the token 122"));
  options.sample = 0;
  CHECK_NOTHROW(check_prompt(options, tokens));
}

}  // namespace
}  // namespace rankwise
