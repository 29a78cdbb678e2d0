#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mpi.h>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

/// @file
/// One rank's connection to the judge, which passes all messages on and counts them (scripts/course/hub.py).
///
/// Every send is synchronous: it is complete when the receiver has matched it. MPI allows that of MPI_Send, so a program
/// that relies on buffers meets its deadlock here.

namespace judge {

/// What a frame between a rank and the judge says.
enum class Kind : std::uint32_t {
  message = 1,  ///< a message; `peer` is its receiver, and on delivery its sender
  ack = 2,      ///< the message with this number was matched; `peer` is its sender, and on delivery its receiver
  meet =
      3,  ///< a call that all members of a communicator make: name, 0 byte, rank, data; answered by the data of all
  blocked =
      4,  ///< a thread, `number`, waits though it has seen the first `context` frames; for what, as text. The rank
          ///< has started to receive from rank `peer` first
  resumed = 5,    ///< that thread continues
  abort = 6,      ///< the rank ends the job with status `tag`
  finalized = 7,  ///< the rank has called MPI_Finalize
  computes = 8    ///< another thread computes while this message is under way
};

/// Header of a frame; `bytes` bytes follow.
struct Frame {
  Kind kind;
  std::int32_t peer;     ///< rank in the job
  std::int32_t context;  ///< of the communicator
  std::int32_t tag;      ///< of the message
  std::uint64_t number;  ///< of the message or the call
  std::uint64_t bytes;   ///< that follow
};

/// A communicator.
struct Communicator {
  int context;               ///< number that its messages carry
  std::vector<int> members;  ///< ranks in the job
  int rank;                  ///< this one
  std::uint64_t calls = 0;   ///< collective calls so far

  /// Rank in the communicator of a rank of the job; MPI_UNDEFINED if it is no member.
  int rank_of(int in_job) const;
};

/// Something under way.
struct Request {
  bool done = false;                           ///< complete
  int source = 0;                              ///< rank in the job, or MPI_ANY_SOURCE, and then the sender
  int tag = 0;                                 ///< tag, or MPI_ANY_TAG, and then the message's
  std::uint64_t number = 0;                    ///< of a send or a collective call
  std::size_t bytes = 0;                       ///< received
  const Communicator* communicator = nullptr;  ///< of all ranks concerned
  std::span<std::byte> buffer{};               ///< to receive into
  std::span<const std::byte> sent{};           ///< of a send
  std::size_t hash = 0;                        ///< of what is sent, at the start
  std::function<void(const std::vector<std::vector<std::byte>>&)>
      finish{};        ///< of a collective, with the data of all
  std::string what{};  ///< for people, what is waited for: "a message of rank 2 (MPI_Recv, tag 0)"
  std::thread::id thread = std::this_thread::get_id();  ///< that has started it
  bool hidden = false;                                  ///< of a send: another thread has computed meanwhile
  std::function<Request*()> start{};                    ///< of a persistent request: starts what it stands for
  Request* started = nullptr;                           ///< by it, and not ended yet
  ~Request();
};

/// A message that arrived before its receive.
struct Message {
  int source, context, tag;
  std::uint64_t number;
  std::vector<std::byte> data;
};

/// The connection of this process.
class Connection {
 public:
  /// Connects through the file descriptor that RANKWISE_HUB gives, "fd:rank:ranks:1 or 0 for computes()", and starts to read from it.
  Connection();

  int rank() const { return world_.rank; }  ///< in the job
  Communicator& world() { return world_; }  ///< of all ranks
  Communicator& self() { return self_; }    ///< of this rank alone

  /// Starts to send.
  Request* send(const Communicator& to, std::span<const std::byte> data, int rank, int tag, const char* call);
  /// Starts to receive.
  Request* receive(const Communicator& from, std::span<std::byte> buffer, int rank, int tag, const char* call);
  /// Starts a collective call; `finish` gets what all members gave, by rank.
  Request* meet(Communicator& members, const char* call, std::span<const std::byte> data,
                std::function<void(const std::vector<std::vector<std::byte>>&)> finish);

  /// Waits until @p done holds. @param what  is waited for, as in "rank 0 waits for ...".
  void wait(const std::function<bool()>& done, const std::string& what);
  /// Whether a program that asks, but does not wait, finds what it asks for. The judge has to know of one that did not:
  /// it may ask for ever, so messages are not held back from it. Call it with mutex() locked.
  bool found(bool success);
  /// The oldest message that matches and has not been received; null if none. Call it with mutex() locked.
  /// @param takes  removes it from the queue; take() receives it then.
  Message* find(const Communicator& from, int rank, int tag, bool takes);
  /// Receives a message that find() has removed; the request is complete.
  Request* take(Message* message, std::span<std::byte> buffer);
  /// No call will end this request, as MPI_Wait would: the memory of a send may be changed at once.
  void forget(Request* request);
  std::mutex& mutex() { return mutex_; }  ///< protects what has arrived
  /// This thread is about to compute: where the judge wants to know, tells it which messages of other threads are under
  /// way. Before, all others run until they wait, so what they were asked to send is sent, however slow they are.
  void computes();
  /// A communicator number that this process has not used yet.
  int next_context() const { return next_context_; }
  void use_context(int context) { next_context_ = context + 1; }  ///< the next one is larger

  /// Ends the job with a message on standard error.
  [[noreturn]] void abort(int status, const std::string& why);
  /// Says that this rank has finished; ends the job where a request has not been ended.
  void finalize();

 private:
  void write(const Frame& frame, std::span<const std::byte> data);
  void read_all();
  void arrive(Message message);
  int wanted_source() const;  ///< of the first receive that has no message yet
  void answer(const Frame& frame, const std::vector<std::byte>& data);
  /// Ends the job where a message may arrive in memory that is still sent, which MPI forbids.
  void check_apart(const Request& receive, const Request& sent);
  void complete(Request& request, const Message& message);

  int fd_ = -1;
  int counts_hidden_ = 0;  // whether the judge wants to know of computes()
  Communicator world_{}, self_{};
  std::mutex mutex_, write_mutex_;
  std::condition_variable changed_;
  std::list<Message> unexpected_;
  std::deque<Request*> posted_, sent_, met_;
  std::uint64_t numbers_ = 0;
  int next_context_ = 2;
  int seen_ = 0;                 // frames of the judge that have been acted upon; 0 again after the largest int
  std::atomic<int> asked_ = -1;  // seen_ at the last unsuccessful test or probe; -1 after any send since
};

/// "a message of rank 2 (MPI_Probe, tag 0)"
std::string message_of(int source, const char* call, int tag);

/// The connection; made by MPI_Init.
Connection& connection();

}  // namespace judge
