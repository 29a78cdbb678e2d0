// Encodes a text as a token file, which every lesson reads with --data=FILE.h5.
//
// Sample runs:  build/data/prepare --tokenizer=byte tinyshakespeare.txt tinyshakespeare.h5
//               build/data/prepare --tokenizer=gpt2 --vocabulary-from=gpt2 tinyshakespeare.txt tinyshakespeare.h5

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/files/named_files.hpp"
#include "common/messages/program.hpp"
#include "common/program/progress_bar.hpp"
#include "data/text_file.hpp"

namespace rankwise {

namespace {

struct Options {
  std::string tokenizer = "byte";
  std::string vocabulary_from;     // folder with the tokenizer's files
  std::vector<std::string> files;  // the text and the token file
};

/// The work of a checked command line. Rank 0 does it; other ranks have nothing to do.
struct Job {
  VocabularyFiles vocabulary;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::vector<FileLock> locks;
  TextMeasure measure;
  std::unique_ptr<TokenFileWriter> writer;
};

/// The vocabulary files of the tokenizer, if it needs any.
VocabularyFiles vocabulary_for(const Options& options)
{
  const bool needed = needs_vocabulary_files(options.tokenizer);
  if (needed && options.vocabulary_from.empty()) {
    throw UserError(fmt::format("--tokenizer={} needs its vocabulary.", options.tokenizer),
                    std::string("Name its folder: --vocabulary-from=FOLDER. ") + where_vocabularies_come_from);
  }
  if (!needed && !options.vocabulary_from.empty()) {
    throw UserError(fmt::format("--vocabulary-from={} is not used with --tokenizer={}.", options.vocabulary_from,
                                options.tokenizer),
                    "Leave it out, or use --tokenizer=gpt2.");
  }
  return needed ? read_vocabulary_files(options.vocabulary_from) : VocabularyFiles{};
}

/// Checks the command line and the files, and leaves @p job ready to run. The token file does not exist yet.
void check_job(const Options& options, Job& job)
{
  job.vocabulary = vocabulary_for(options);
  job.tokenizer = make_tokenizer(options.tokenizer, job.vocabulary);
  if (options.files.size() != 2) {
    throw UserError(fmt::format("two files are needed; {} given.", options.files.size()),
                    "Name the text, then the token file to write:\n"
                    "build/data/prepare --tokenizer=byte TEXT.txt FILE.h5");
  }
  const std::string& text = options.files[0];
  const std::string& out = options.files[1];
  const std::array<NamedFile, 2> named{{{text, text, FileUse::read}, {out, out, FileUse::replace, token_seal}}};
  check_files(named);
  std::vector<FileLock> locks = lock_files(named);
  job.measure = measure_text(text);
  job.writer = std::make_unique<TokenFileWriter>(
      out, TokenFileInfo{.vocabulary = job.tokenizer->vocabulary(),
                         .tokenizer = job.tokenizer->name(),
                         .source = std::filesystem::path(text).filename().string(),
                         .source_sha256 = job.measure.sha256,
                         .files = std::move(job.vocabulary)});
  job.locks = std::move(locks);
}

void run_job(const Options& options, Job& job)
{
  const std::vector<FileLock> locks = std::move(job.locks);  // an exception removes their files, and the writer's
  const std::unique_ptr<TokenFileWriter> writer = std::move(job.writer);
  ProgressBar bar("MB");
  write_tokens(options.files[0], job.measure, *job.tokenizer, *writer,
               [&](std::int64_t bytes) { bar.show(bytes / 1'000'000, job.measure.bytes / 1'000'000); });
  bar.clear();
  writer->finish();
  const Tokens tokens = open_token_file(options.files[1]);
  const std::string result = fmt::format(
      "{}: {} tokens to train on, {} for validation, vocabulary {} ({}), from {} characters\n{}", options.files[1],
      group_digits(tokens.train->size()), group_digits(tokens.validation->size()), group_digits(tokens.vocabulary),
      tokens.tokenizer->name(), group_digits(job.measure.characters), job.measure.notes);
  check_system(print_text(stdout, result), "print the result");
}

}  // namespace

}  // namespace rankwise

int main(int argc, char** argv)
{
  using namespace rankwise;
  Options options;
  OptionTable table("prepare", "Encodes a text as a token file: prepare [options] TEXT.txt FILE.h5");
  table.add("data", "tokenizer", options.tokenizer,
            "tokenizer: byte (each byte is a token) or gpt2 (GPT-2's byte pair encoding)");
  table.add("data", "vocabulary-from", options.vocabulary_from,
            "folder with encoder.json and vocab.bpe (or vocab.json and merges.txt), for gpt2");

  Job job;
  return run_file_program(
      argc, argv, table,
      [&](const std::vector<std::string>& files) {
        options.files = files;
        check_job(options, job);
      },
      [&](const std::vector<std::string>&) {
        run_job(options, job);
        return exit_success;
      });
}
