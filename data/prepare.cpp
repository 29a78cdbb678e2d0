// Turns a text into a token file, which every lesson reads with --data=FILE.h5.
//
// Sample runs:  build/data/prepare --tokenizer=byte tinyshakespeare.txt tinyshakespeare.h5

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "common/error.hpp"
#include "common/program.hpp"
#include "common/text.hpp"
#include "data/text_file.hpp"

namespace rankwise {

namespace {

struct Options {
  std::string tokenizer = "byte";
  std::vector<std::string> files;  // the text, and the token file to make of it
};

/// What stands between a checked command line and a token file; rank 0 has one, other ranks have nothing to do.
struct Job {
  std::unique_ptr<const Tokenizer> tokenizer;
  TextMeasure measure;
  std::unique_ptr<TokenFileWriter> writer;
};

/// Moves the arguments that are not options from @p arguments to @p files.
void take_files(std::vector<char*>& arguments, std::vector<std::string>& files)
{
  std::vector<char*> options;
  for (char* const argument : arguments) {
    const bool is_file = !options.empty() && !std::string_view(argument).starts_with("--");
    if (is_file) {
      files.emplace_back(argument);
    } else {
      options.push_back(argument);
    }
  }
  arguments = options;
}

/// Refuses what cannot be done, and leaves @p job ready to run. The token file's own name is not touched yet.
void check_job(const Options& options, Job& job)
{
  job.tokenizer = make_tokenizer(options.tokenizer);
  if (options.files.size() != 2) {
    throw UserError(fmt::format("two files are needed; {} given.", options.files.size()),
                    "First the text, then the token file to make of it:\n"
                    "build/data/prepare --tokenizer=byte TEXT.txt FILE.h5");
  }
  const std::string& text = options.files[0];
  const std::string& out = options.files[1];
  job.measure = measure_text(text);

  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(out, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw UserError(fmt::format("{} is a folder or a device, not a file that could be replaced.", out),
                    "Name the token file itself.");
  }
  for (const std::string& written : {out, TokenFileWriter::temporary_name(out)}) {
    if (!std::filesystem::equivalent(text, written, error)) continue;
    throw UserError(fmt::format("{} is the text itself, which the token file would replace.", written),
                    "Give the token file another name.");
  }
  job.writer = std::make_unique<TokenFileWriter>(
      out, TokenFileInfo{.vocabulary = job.tokenizer->vocabulary(),
                         .tokenizer = job.tokenizer->name(),
                         .source = std::filesystem::path(text).filename().string(),
                         .source_sha256 = job.measure.sha256});
}

void run_job(const Options& options, Job& job)
{
  const std::unique_ptr<TokenFileWriter> writer = std::move(job.writer);  // an exception removes its temporary file
  write_tokens(options.files[0], job.measure, *job.tokenizer, *writer);
  writer->finish();
  const Tokens tokens = open_token_file(options.files[1]);
  fmt::print("{}: {} tokens to train on, {} for validation, vocabulary {} ({}), from {} characters\n",
             options.files[1], group_digits(tokens.train->size()), group_digits(tokens.validation->size()),
             group_digits(tokens.vocabulary), tokens.tokenizer, group_digits(job.measure.characters));
}

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  std::vector<char*> arguments(argv, argv + argc);
  take_files(arguments, options.files);
  const int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);  // as argv ends
  OptionTable table("prepare", "Makes a token file of a text: prepare [--tokenizer=NAME] TEXT.txt FILE.h5");
  table.add("data", "tokenizer", options.tokenizer, "what makes tokens of the text: byte (each byte is a token)");

  Job job;
  return run_program(
      count, arguments.data(), table,
      [&](const Session& session) {
        if (session.rank() == 0) check_job(options, job);
      },
      [&](Session& session) {
        if (session.rank() == 0) run_job(options, job);
        return exit_success;
      });
}
