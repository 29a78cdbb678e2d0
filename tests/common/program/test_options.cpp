#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/json.hpp"
#include "common/program/options.hpp"
#include "tests/catch.hpp"
#include "tests/fuzz.hpp"

using namespace rankwise;

namespace {

enum class Model { nano, mini, gpt2 };

/// A program's options, as a lesson declares them.
struct Settings {
  int steps = 10;
  std::int64_t batch = 16;
  std::uint32_t seed = 1;
  double rate = 1e-3;
  bool dry_run = false;
  std::string report;
  Bytes limit;
  Model model = Model::nano;
  OptionTable options{"test", "Options to test."};

  Settings()
  {
    options.add("Training", "steps", steps, "optimizer steps");
    options.add("Training", "global-batch", batch, "sequences a step");
    options.add("Training", "seed", seed, "of all random numbers");
    options.add("Training", "learning-rate", rate, "at its peak");
    options.add("Output", "dry-run", dry_run, "only say what the run would need");
    options.add("Output", "report", report, "JSON document", "FILE.json");
    options.add("Output", "memory-limit", limit, "bytes of the device");
    options.add_choice<Model>("Model", "model", model,
                              {{"nano", Model::nano}, {"mini", Model::mini}, {"gpt2", Model::gpt2}}, "preset");
  }

  void parse(std::vector<std::string> arguments)
  {
    arguments.insert(arguments.begin(), "program");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    options.parse(static_cast<int>(argv.size()), argv.data());
  }
};

/// The message to a user who types this.
std::string refusal(const std::vector<std::string>& arguments)
{
  Settings settings;
  try {
    settings.parse(arguments);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

/// A configuration file for the time of a test.
struct ConfigFile {
  const std::string path =
      std::filesystem::temp_directory_path() / fmt::format("rankwise_{}_test_options.cfg", getpid());
  explicit ConfigFile(const std::string& content) { std::ofstream(path) << content; }
  ~ConfigFile() { std::filesystem::remove(path); }
  std::string option() const { return "--config=" + path; }
};

}  // namespace

TEST_CASE("OptionTable: each type is set, and what is not given keeps its default")
{
  Settings s;
  s.parse({"--steps=-5", "--global-batch=9000000000", "--seed=4294967295", "--learning-rate=2.5e-4", "--dry-run",
           "--report=a b.json", "--memory-limit=64MB", "--model=gpt2"});
  CHECK(s.steps == -5);
  CHECK(s.batch == 9000000000);
  CHECK(s.seed == 4294967295u);
  CHECK(s.rate == 2.5e-4);
  CHECK(s.dry_run);
  CHECK(s.report == "a b.json");
  CHECK(s.limit == Bytes{64'000'000});
  CHECK(s.model == Model::gpt2);
  CHECK(s.options.given("steps"));

  Settings untouched;
  untouched.parse({"--steps", "7"});
  CHECK(untouched.steps == 7);
  CHECK(untouched.batch == 16);
  CHECK_FALSE(untouched.dry_run);
  CHECK(untouched.model == Model::nano);
  CHECK(untouched.options.given("steps"));
  CHECK_FALSE(untouched.options.given("seed"));
  CHECK_THROWS_AS(untouched.options.given("stpes"), Error);
}

TEST_CASE("OptionTable: a misspelt option is refused with the nearest name")
{
  CHECK(refusal({"--stpes=5"}) ==
        "error: unknown option --stpes.\n       Did you mean --steps? --help lists all options.");
  CHECK_THAT(refusal({"--stpes", "5"}), Contains("unknown option --stpes.") && Contains("Did you mean --steps?"));
  CHECK_THAT(refusal({"--learning_rate=1"}), Contains("Did you mean --learning-rate?"));
  CHECK_THAT(refusal({"--hlep"}), Contains("Did you mean --help?"));
  CHECK_THAT(refusal({"--zzzzzzzz"}), Contains("unknown option --zzzzzzzz") && !Contains("Did you mean"));
  // No abbreviations, no short options, no arguments without a name.
  CHECK_THAT(refusal({"--step=5"}), Contains("Did you mean --steps?"));
  CHECK_THAT(refusal({"-s5"}), Contains("\"-s5\" is not an option.") && Contains("--name=value"));
  CHECK_THAT(refusal({"-h"}), Contains("\"-h\" is not an option.") && Contains("--help"));
  CHECK_THAT(refusal({"corpus.h5"}), Contains("\"corpus.h5\" is not an option."));
  CHECK_THAT(refusal({"--steps=5", "6"}), Contains("\"6\" is not an option."));
  CHECK_THAT(refusal({"--", "--steps=5"}), Contains("unknown option --."));
}

TEST_CASE("OptionTable: whole numbers are read strictly")
{
  CHECK(refusal({"--steps=5x"}) ==
        "error: --steps=5x is not a whole number.\n       Write it as --steps=10 (the default).");
  for (const std::string text : {"5.0", "1e3", "0x10", "five", " 5", "5 ", "+5", "1,000"}) {
    CHECK_THAT(refusal({"--steps=" + text}), Contains("is not a whole number"));
  }
  CHECK_THAT(refusal({"--steps=2147483648"}), Contains("is not a whole number of 32 bits"));
  CHECK_THAT(refusal({"--global-batch=9223372036854775808"}), Contains("is not a whole number of 64 bits"));
  CHECK_THAT(refusal({"--seed=4294967296"}), Contains("is not a whole number of 32 bits"));
  CHECK_THAT(refusal({"--seed=-1"}), Contains("0 or more"));
}

TEST_CASE("OptionTable: f64 are finite and read to the end")
{
  for (const std::string text : {"nan", "inf", "-inf", "1e-3x", "1.2.3", "0,001", ".", "one"}) {
    CHECK_THAT(refusal({"--learning-rate=" + text}), Contains("is not a finite number"));
  }
  CHECK_THAT(refusal({"--learning-rate=1e999"}), Contains("to 1e308"));
  CHECK_THAT(refusal({"--learning-rate=1e-999"}), Contains("from 1e-307"));
  CHECK(refusal({"--learning-rate=-.5e+2"}) == "accepted");
  CHECK(refusal({"--learning-rate=0"}) == "accepted");
}

TEST_CASE("OptionTable: bytes have units of ten and of two")
{
  const std::vector<std::pair<std::string, std::int64_t>> sizes = {{"0", 0},
                                                                   {"17", 17},
                                                                   {"17B", 17},
                                                                   {"512kB", 512'000},
                                                                   {"64MB", 64'000'000},
                                                                   {"1GB", 1000000000},
                                                                   {"2TB", 2000000000000},
                                                                   {"3KiB", 3072},
                                                                   {"64MiB", 67108864},
                                                                   {"1GiB", 1073741824},
                                                                   {"1TiB", 1LL << 40}};
  for (const auto& [text, bytes] : sizes) {
    Settings s;
    s.parse({"--memory-limit=" + text});
    CHECK(s.limit.value == bytes);
    CHECK(s.options.json()["memory-limit"] == bytes);
  }
  for (const std::string text : {"64 MB", "64mb", "64M", "MB", "-1", "-0", "1.5GB", "64MBx"}) {
    CHECK_THAT(refusal({"--memory-limit=" + text}),
               Contains("is not a number of bytes") && Contains("64MiB (2^20)"));
  }
  CHECK_THAT(refusal({"--memory-limit=10000000000GB"}), Contains("less than 9 * 10^18 bytes"));
}

TEST_CASE("OptionTable: an unknown choice names the nearest and lists all")
{
  CHECK(refusal({"--model=nanno"}) ==
        "error: --model=nanno is not one of its choices.\n"
        "       Did you mean nano? The choices are nano, mini or gpt2.");
  CHECK_THAT(refusal({"--model=bloomberg"}), Contains("The choices are") && !Contains("Did you mean"));
  CHECK_THAT(refusal({"--model=NANO"}), Contains("is not one of its choices"));
}

TEST_CASE("OptionTable: a value that is missing, doubled or unwanted is refused")
{
  CHECK(refusal({"--steps"}) ==
        "error: --steps needs a value.\n       Write it as --steps=10. --help lists all options.");
  CHECK_THAT(refusal({"--steps", "--seed=3"}), Contains("--steps needs a value"));
  CHECK_THAT(refusal({"--report", "--seed=3"}), Contains("--report needs a value"));
  CHECK_THAT(refusal({"--report="}), Contains("--report needs a value") && Contains("--report=FILE.json"));
  CHECK_THAT(refusal({"--steps=5", "--steps=6"}), Contains("--steps is given more than once"));
  CHECK_THAT(refusal({"--dry-run", "--dry-run"}), Contains("--dry-run is given more than once"));
  CHECK_THAT(refusal({"--dry-run="}), Contains("--dry-run needs a value") && Contains("--dry-run=false"));
  CHECK_THAT(refusal({"--dry-run=maybe"}), Contains("--dry-run=maybe is not true or false"));
  CHECK(refusal({"--dry-run=false"}) == "accepted");
}

TEST_CASE("OptionTable: --flag=false unsets a flag")
{
  Settings s;
  s.parse({"--dry-run=false"});
  CHECK_FALSE(s.dry_run);
  CHECK(s.options.given("dry-run"));
}

TEST_CASE("OptionTable: the command line wins over the configuration file")
{
  const ConfigFile file(
      "# a comment\n\nsteps = 3   # of many\nseed=7\n  model =  mini \ndry-run = true\nreport = r.json\n");
  Settings s;
  s.parse({"--seed=8", file.option()});
  CHECK(s.steps == 3);
  CHECK(s.seed == 8);
  CHECK(s.model == Model::mini);
  CHECK(s.dry_run);
  CHECK(s.report == "r.json");
  CHECK(s.options.given("steps"));
  CHECK(s.options.given("seed"));
  CHECK_FALSE(s.options.given("global-batch"));
}

TEST_CASE("OptionTable: a configuration file can say every value")
{
  const std::vector<std::pair<std::string, std::string>> values = {
      {"Issue #5 says", "Issue #5 says"},
      {"a#b", "a#b"},
      {"#1", "#1"},
      {"plain # a comment", "plain"},
      {"\"  two blanks\"", "  two blanks"},
      {"\"a # b\" # a comment", "a # b"},
      {"\"a\\nb \\\"c\\\" \\\\ \\u00e9\"", "a\nb \"c\" \\ \u00e9"},
      {"'  \"as\\n it is\" #'", "  \"as\\n it is\" #"},
      {"\"\"", ""},
      {"-- Hamlet", "-- Hamlet"},
      {"--steps=5", "--steps=5"},
      {"a = b", "a = b"},
      {"caf\xe9", "caf\xe9"},
      {"ends with a carriage return\r", "ends with a carriage return"}};
  for (const auto& [written, meant] : values) {
    const ConfigFile file("report = " + written + "\nsteps = 3 #of many\n");
    Settings s;
    s.parse({file.option()});
    INFO(written);
    CHECK(s.report == meant);
    CHECK(s.steps == 3);
  }
  for (const std::string content : {"\xEF\xBB\xBFsteps = 3\n", "--steps = 3\n", "steps = \"3\"\n", "steps = '3'"}) {
    const ConfigFile file(content);
    Settings s;
    s.parse({file.option()});
    INFO(content);
    CHECK(s.steps == 3);
  }
}

TEST_CASE("OptionTable: a value on the command line may begin with dashes")
{
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--report=-- Hamlet"}, {"--report", "-- Hamlet"}}) {
    Settings s;
    s.parse(words);
    CHECK(s.report == "-- Hamlet");
  }
  Settings s;
  s.parse({"--report=--steps=5"});
  CHECK(s.report == "--steps=5");
}

TEST_CASE("OptionTable: options without effect are refused if they were set to anything but the default")
{
  const std::vector<Effect> effects{{"learning-rate", true, "", ""},
                                    {"steps", false, "has no effect without a run", "Start one."},
                                    {"not-of-this-program", false, "", ""}};
  Settings s;
  s.parse({"--steps=10", "--learning-rate=1"});
  CHECK_NOTHROW(s.options.check_effects(effects));
  Settings other;
  other.parse({"--steps=11"});
  CHECK_THROWS_WITH(other.options.check_effects(effects),
                    "error: --steps=11 has no effect without a run.\n       Start one. Or leave --steps out.");
}

TEST_CASE("OptionTable: a random configuration file is either read or refused")
{
  const std::string good =
      "# a run\nsteps = 3\nseed=7\n  model =  mini \ndry-run = true\nlearning-rate=2e-4\nreport=r\n";
  Draw draw(11);
  int accepted = 0;
  const int inputs = fuzz_inputs(300);
  for (int i = 0; i < inputs; ++i) {
    const ConfigFile file(damaged(good, draw));
    accepted += refusal({file.option()}) == "accepted" ? 1 : 0;
  }
  CHECK(accepted > 0);  // damage in a comment
  CHECK(accepted < inputs / 2);
}

TEST_CASE("OptionTable: a bad configuration file is refused by name and line")
{
  const auto with_file = [](const std::string& content, const std::vector<std::string>& more = {}) {
    const ConfigFile file(content);
    std::vector<std::string> arguments = more;
    arguments.push_back(file.option());
    return refusal(arguments);
  };
  const std::string file = "_test_options.cfg";
  CHECK_THAT(with_file("stpes=3\n"), Contains("unknown option stpes in ") && Contains(file + ", line 1") &&
                                         Contains("Did you mean --steps?"));
  CHECK_THAT(with_file("\nsteps=3x"), Contains("steps=3x in ") && Contains("line 2") && Contains("whole number"));
  CHECK_THAT(with_file("steps=3x", {"--steps=4"}), Contains("steps=3x in "));
  CHECK_THAT(with_file("model=nanno"), Contains("model=nanno in ") && Contains("Did you mean nano?"));
  CHECK_THAT(with_file("steps=3\nsteps=4\n"), Contains("line 2") && Contains("once"));
  CHECK_THAT(with_file("config=other.cfg\n"), Contains("names no other file"));
  for (const char* value : {"\u201Cowls\u201D", "\u201Eowls\u201C", "\u2019owls\u2019"})
    CHECK_THAT(with_file(fmt::format("report = {}\n", value)),
               Contains("curly quote") && Contains("straight ones"));
  for (const std::string& content :
       {std::string("steps=3\nreport = a\0b", 20), std::string("\nreport = \"a\\u0000b\"")})
    CHECK_THAT(with_file(content), Contains("a zero byte in ") && Contains("line 2") && Contains("--prompt-file"));
  CHECK_THAT(with_file("[training]\n"), Contains("\"[training]\" in ") && Contains("name = value"));
  CHECK_THAT(with_file("steps=\n"), Contains("is not a whole number"));
  CHECK(with_file("") == "accepted");
  for (const std::string& content : {std::string("s\0t\0e\0p\0s\0=\0002\0\n\0", 16), std::string("\xFF\xFEs\0", 4)})
    CHECK_THAT(with_file(content), Contains("looks like UTF-16") && Contains("iconv -f UTF-16"));
  for (const std::string value : {"\"no end", "\"a\" b", "\"\\q\"", "'Tis", "\"\\\""})
    CHECK_THAT(with_file("report = " + value),
               Contains("report in ") && Contains("is not a value in quotes: " + value));
  CHECK_THAT(refusal({"--config=/nowhere/run.cfg"}), Contains("--config=/nowhere/run.cfg does not exist"));
  CHECK_THAT(refusal({"--config=/"}), Contains("--config=/ is a folder"));
}

TEST_CASE("OptionTable: help shows groups, kinds and defaults, also beside mistakes")
{
  std::optional<std::string> help;
  try {
    Settings().parse({"--steps=7", "--help", "--nonsense"});
  } catch (const HelpRequest& request) {
    help = request.what();
  }
  REQUIRE(help);
  CHECK_THAT(*help, Contains("Options to test.") && Contains("Usage: test [--name=value ...]"));
  CHECK_THAT(*help, Contains("\nTraining\n  --steps=INTEGER               optimizer steps (default 10)\n"));
  CHECK_THAT(*help, Contains("\n  --dry-run                     only say what the run would need\n"));
  CHECK_THAT(*help, Contains("--report=FILE.json            JSON document\n"));
  CHECK_THAT(*help, Contains("--model=nano|mini|gpt2        preset (default nano)"));
  CHECK_THAT(*help, Contains("\nHelp\n  --config=FILE"));
  CHECK(help->find("\nHelp\n") > help->find("\nModel\n"));
}

TEST_CASE("OptionTable: the table shows what was chosen, JSON all values")
{
  Settings s;
  s.parse({"--steps=7", "--memory-limit=64MiB", "--model=mini"});
  CHECK(s.options.table() ==
        "--steps         7      optimizer steps\n"
        "--memory-limit  64MiB  bytes of the device\n"
        "--model         mini   preset");

  const nlohmann::json json = s.options.json();
  CHECK(json["steps"] == 7);
  CHECK(json["learning-rate"] == 1e-3);
  CHECK(json["dry-run"] == false);
  CHECK(json["model"] == "mini");
  CHECK(json["report"] == "");
}

TEST_CASE("OptionTable: a name can be declared once")
{
  Settings s;
  CHECK_THROWS_AS(s.options.add("Training", "steps", s.steps, "again"), Error);
}

TEST_CASE("show_value: read_value gives back what was shown")
{
  for (const std::int64_t bytes : {0LL, 1LL, 999LL, 1000LL, 1024LL, 64'000'000LL, 67108864LL, 67108865LL}) {
    Bytes back{-1};
    CHECK(read_value(show_value(Bytes{bytes}), back) == "");
    CHECK(back.value == bytes);
  }
  for (double number : {0.1, 1e-3, 6.02214076e23, -0.0, 1.0 / 3, std::numeric_limits<double>::max()}) {
    double back = -1;
    CHECK(read_value(show_value(number), back) == "");
    CHECK(back == number);
  }
}
