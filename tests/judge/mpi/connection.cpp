#include "tests/judge/mpi/connection.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>
#include <unistd.h>

namespace judge {

namespace {

bool read_exactly(int fd, void* to, std::size_t bytes)
{
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

void write_exactly(int fd, const void* from, std::size_t bytes)
{
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t put = ::write(fd, at, bytes);
    if (put <= 0) std::_Exit(1);  // the judge has ended the job
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
}

bool matches(const Message& message, const Communicator& from, int source, int tag)
{
  return message.context == from.context && (source == MPI_ANY_SOURCE || message.source == source) &&
         (tag == MPI_ANY_TAG || message.tag == tag);
}

bool overlap(std::span<const std::byte> one, std::span<const std::byte> other)
{
  return !one.empty() && !other.empty() && one.data() < other.data() + other.size() &&
         other.data() < one.data() + one.size();
}

std::size_t hash_of(std::span<const std::byte> data)
{
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(data.data()), data.size()});
}

constexpr int most_looks = 100'000;  // at others_run(): some seconds

/// Whether another thread of this process runs, or would if there were a processor for it; where /proc says so.
bool others_run()
{
  std::error_code none;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/thread-self", none).filename();
  for (auto task = std::filesystem::directory_iterator("/proc/self/task", none);
       !none && task != std::filesystem::directory_iterator(); task.increment(none)) {
    std::string stat;
    if (task->path().filename() == own || !std::getline(std::ifstream(task->path() / "stat"), stat)) continue;
    const std::size_t name_ends = stat.rfind(')');
    if (name_ends != std::string::npos && stat.compare(name_ends, 3, ") R") == 0) return true;
  }
  return false;
}

std::string call_and_tag(const char* call, int tag)
{
  return std::string(" (") + call + (tag == MPI_ANY_TAG ? ")" : ", tag " + std::to_string(tag) + ")");
}

std::mutex open_mutex;
std::set<const Request*> open;  // the requests that no call has ended, as MPI_Wait does

void opened(const Request* request)
{
  const std::lock_guard lock(open_mutex);
  open.insert(request);
}

}  // namespace

Request::~Request()
{
  const std::lock_guard lock(open_mutex);
  open.erase(this);
}

std::string message_of(int source, const char* call, int tag)
{
  return "a message of " + (source == MPI_ANY_SOURCE ? "any rank" : "rank " + std::to_string(source)) +
         call_and_tag(call, tag);
}

int Communicator::rank_of(int in_job) const
{
  const auto found = std::find(members.begin(), members.end(), in_job);
  return found == members.end() ? MPI_UNDEFINED : static_cast<int>(found - members.begin());
}

Connection& connection()
{
  static Connection& only = *new Connection;  // outlives the threads that may use it
  return only;
}

Connection::Connection()
{
  const char* given = std::getenv("RANKWISE_HUB");
  int rank = 0, ranks = 0;
  if (given == nullptr || std::sscanf(given, "%d:%d:%d:%d", &fd_, &rank, &ranks, &counts_hidden_) != 4) {
    std::fputs("RANKWISE_HUB does not say where the judge is\n", stderr);
    std::_Exit(1);
  }
  world_ = {0, std::vector<int>(static_cast<std::size_t>(ranks)), rank};
  std::iota(world_.members.begin(), world_.members.end(), 0);
  self_ = {1, {rank}, 0};
  std::thread([this] { read_all(); }).detach();
}

void Connection::write(const Frame& frame, std::span<const std::byte> data)
{
  const std::lock_guard lock(write_mutex_);
  if (frame.kind != Kind::blocked || frame.number != 0) asked_ = -1;  // the judge takes it that the rank continues
  write_exactly(fd_, &frame, sizeof frame);
  write_exactly(fd_, data.data(), data.size());
}

Request* Connection::send(const Communicator& to, std::span<const std::byte> data, int rank, int tag,
                          const char* call)
{
  if (tag < 0) abort(1, std::string(call) + " was given the tag " + std::to_string(tag) + "; a tag is 0 or more");
  const int peer = to.members.at(static_cast<std::size_t>(rank));
  auto* request = new Request{.tag = tag,
                              .communicator = &to,
                              .sent = data,
                              .hash = hash_of(data),
                              .what = "rank " + std::to_string(peer) + " to receive" + call_and_tag(call, tag)};
  opened(request);
  {
    const std::lock_guard lock(mutex_);
    for (const Request* receive : posted_) check_apart(*receive, *request);
    request->number = ++numbers_;
    sent_.push_back(request);
  }
  write({Kind::message, peer, to.context, tag, request->number, data.size()}, data);
  return request;
}

Request* Connection::receive(const Communicator& from, std::span<std::byte> buffer, int rank, int tag,
                             const char* call)
{
  const int source = rank == MPI_ANY_SOURCE ? rank : from.members.at(static_cast<std::size_t>(rank));
  auto* request = new Request{
      .source = source, .tag = tag, .communicator = &from, .buffer = buffer, .what = message_of(source, call, tag)};
  opened(request);
  std::unique_lock lock(mutex_);
  for (const Request* sent : sent_) check_apart(*request, *sent);
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                  [&](const Message& message) { return matches(message, from, source, tag); });
  if (found == unexpected_.end()) {
    posted_.push_back(request);
    return request;
  }
  const Message message = std::move(*found);
  unexpected_.erase(found);
  lock.unlock();
  complete(*request, message);
  return request;
}

Request* Connection::meet(Communicator& members, const char* call, std::span<const std::byte> data,
                          std::function<void(const std::vector<std::vector<std::byte>>&)> finish)
{
  auto* request = new Request{
      .communicator = &members, .finish = std::move(finish), .what = std::string("all others (") + call + ")"};
  opened(request);
  {
    const std::lock_guard lock(mutex_);
    request->number = ++members.calls;
    met_.push_back(request);
  }
  const std::size_t length = std::strlen(call) + 1;
  std::vector<std::byte> named(length + sizeof members.rank);
  std::memcpy(named.data(), call, length);
  std::memcpy(&named[length], &members.rank, sizeof members.rank);
  named.insert(named.end(), data.begin(), data.end());
  write({Kind::meet, static_cast<int>(members.members.size()), members.context, members.members.front(),
         request->number, named.size()},
        named);
  return request;
}

void Connection::wait(const std::function<bool()>& done, const std::string& what)
{
  static std::atomic<std::uint64_t> threads = 0;
  thread_local const std::uint64_t thread = ++threads;
  std::unique_lock lock(mutex_);
  bool is_done = done();  // asked once for each answer: it may take a message
  if (is_done) return;
  const auto text = std::as_bytes(std::span(what));
  while (!is_done) {
    const int seen = seen_;
    write({Kind::blocked, wanted_source(), seen, 0, thread, text.size()}, text);
    changed_.wait(lock, [&] { return (is_done = done()) || seen_ != seen; });
  }
  write({Kind::resumed, 0, 0, 0, thread, 0}, {});
}

void Connection::computes()
{
  if (counts_hidden_ == 0) return;
  for (int i = 0; i < most_looks && others_run(); ++i) std::this_thread::sleep_for(std::chrono::microseconds(50));
  const std::lock_guard lock(mutex_);
  for (Request* sent : sent_) {
    if (sent->hidden || sent->thread == std::this_thread::get_id()) continue;
    sent->hidden = true;
    write({Kind::computes, 0, 0, 0, sent->number, 0}, {});
  }
}

bool Connection::found(bool success)
{
  if (success || asked_ == seen_) return success;
  asked_ = seen_;
  write({Kind::blocked, wanted_source(), seen_, 0, 0, 0}, {});
  return false;
}

int Connection::wanted_source() const
{
  return posted_.empty() ? MPI_ANY_SOURCE : posted_.front()->source;
}

void Connection::check_apart(const Request& receive, const Request& sent)
{
  if (!overlap(receive.buffer, sent.sent)) return;
  abort(1, "rank " + std::to_string(rank()) + " waits for " + receive.what +
               " in memory from which it still waits for " + sent.what);
}

Message* Connection::find(const Communicator& from, int rank, int tag, bool takes)
{
  const int source = rank == MPI_ANY_SOURCE ? rank : from.members.at(static_cast<std::size_t>(rank));
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(),
                                  [&](const Message& message) { return matches(message, from, source, tag); });
  if (found == unexpected_.end()) return nullptr;
  if (!takes) return &*found;
  auto* taken = new Message(std::move(*found));
  unexpected_.erase(found);
  return taken;
}

Request* Connection::take(Message* message, std::span<std::byte> buffer)
{
  auto* request = new Request{.communicator = &world_, .buffer = buffer, .what = "MPI_Mrecv"};
  opened(request);
  complete(*request, *message);
  delete message;
  return request;
}

void Connection::forget(Request* request)
{
  const std::scoped_lock lock(mutex_, open_mutex);
  open.erase(request);
  request->sent = {};
  request->hash = hash_of({});
}

void Connection::complete(Request& request, const Message& message)
{
  if (message.data.size() > request.buffer.size())
    abort(1, "rank " + std::to_string(rank()) + ": " + request.what + " was given " +
                 std::to_string(request.buffer.size()) + " bytes of memory; the message has " +
                 std::to_string(message.data.size()));
  std::copy(message.data.begin(), message.data.end(), request.buffer.begin());
  {
    const std::lock_guard lock(mutex_);
    request.source = message.source;
    request.tag = message.tag;
    request.bytes = message.data.size();
    request.done = true;
  }
  write({Kind::ack, message.source, message.context, message.tag, message.number, 0}, {});
}

void Connection::arrive(Message message)
{
  std::unique_lock lock(mutex_);
  const auto found = std::find_if(posted_.begin(), posted_.end(), [&](const Request* request) {
    return matches(message, *request->communicator, request->source, request->tag);
  });
  if (found == posted_.end()) {
    unexpected_.push_back(std::move(message));
    return;
  }
  Request* request = *found;
  posted_.erase(found);
  lock.unlock();
  complete(*request, message);
}

void Connection::read_all()
{
  Frame frame{};
  while (read_exactly(fd_, &frame, sizeof frame)) {
    std::vector<std::byte> data(frame.bytes);
    if (!read_exactly(fd_, data.data(), data.size())) break;
    if (frame.kind == Kind::message)
      arrive({frame.peer, frame.context, frame.tag, frame.number, std::move(data)});
    else
      answer(frame, data);
    {
      const std::lock_guard lock(mutex_);
      seen_ = seen_ == std::numeric_limits<int>::max() ? 0 : seen_ + 1;
    }
    changed_.notify_all();
  }
  std::_Exit(1);  // the judge has ended the job
}

void Connection::answer(const Frame& frame, const std::vector<std::byte>& data)
{
  auto& waiting = frame.kind == Kind::ack ? sent_ : met_;
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(waiting.begin(), waiting.end(), [&](const Request* request) {
    return request->number == frame.number && request->communicator->context == frame.context;
  });
  if (found == waiting.end()) return;
  Request* request = *found;
  waiting.erase(found);
  if (frame.kind == Kind::ack && hash_of(request->sent) != request->hash)
    abort(1, "rank " + std::to_string(rank()) + " changed memory from which it still waited for " + request->what);
  if (request->finish) {
    std::vector<std::vector<std::byte>> all;
    for (std::size_t at = 0; at < data.size();) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, &data[at], sizeof bytes);
      const auto first = data.begin() + static_cast<std::ptrdiff_t>(at + sizeof bytes);
      all.emplace_back(first, first + static_cast<std::ptrdiff_t>(bytes));
      at += sizeof bytes + bytes;
    }
    request->finish(all);
  }
  request->done = true;
}

void Connection::abort(int status, const std::string& why)
{
  if (!why.empty()) std::fputs((why + "\n").c_str(), stderr);
  std::fflush(nullptr);
  write({Kind::abort, 0, 0, status, 0, 0}, {});
  std::_Exit(status);
}

void Connection::finalize()
{
  if (!open.empty()) abort(1, "rank " + std::to_string(rank()) + " never waited for " + (*open.begin())->what);
  write({Kind::finalized, 0, 0, 0, 0, 0}, {});
}

}  // namespace judge
