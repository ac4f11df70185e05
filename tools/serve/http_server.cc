// SPDX-License-Identifier: Apache-2.0
#include "tools/serve/http_server.h"

#include <linux/filter.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace keirin::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAcceptRest = std::chrono::milliseconds(50);  // where there are no descriptors left
constexpr auto kHandshake = std::chrono::milliseconds(100);  // that one which has begun may take
constexpr uint32_t kMostHeaderBytes = 64 << 10;

class Server;

// One connection: a request is read, handed on, answered, and the next one is read. On a strand of its own.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Server& server, tcp::socket socket) : server_(server), stream_(std::move(socket)) {}
  ~Connection();
  void start(bool refuse);
  // Closes it if no request has begun to arrive and none is being answered.
  void close_if_idle();

 private:
  using Parser = http::request_parser<http::string_body>;
  void wait_for_request();
  void on_header(error_code error);
  void read_body();
  void on_body(error_code error);
  void handle();
  void fail(unsigned status, const std::string& what);
  void write(HttpAnswer answer, bool keep);
  void close();
  bool began() const { return parser_ && (parser_->got_some() || buffer_.size() > 0); }

  Server& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  http::response<http::string_body> response_;
  http::response<http::empty_body> go_on_;
  std::chrono::steady_clock::time_point arrived_;
  bool waiting_ = false;  // for a request that has not begun, as far as was seen
};

class Server final : public HttpServer {
 public:
  Server(const HttpOptions& options, Handler handler)
      // On a strand: closing ends what waits for a connection, whose handler would run on another thread meanwhile, and wait again.
      : options_(options), handler_(std::move(handler)), acceptor_(asio::make_strand(context_)), rest_(acceptor_.get_executor()) {}
  ~Server() override {
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  Status listen() {
    error_code error;
    const auto address = asio::ip::make_address(options_.address, error);
    if (error)
      return Status(Code::k_invalid_input, {"\"" + options_.address + "\" is not an address",
                                            {},
                                            "nothing is served",
                                            "give one like 127.0.0.1 or 0.0.0.0"});
    const tcp::endpoint endpoint(address, options_.port);
    const auto step = [&](const char* what) {
      return Status(Code::k_exhausted, Message{std::string(what) + ": " + error.message(),
                                               options_.address + ":" + std::to_string(options_.port),
                                               "nothing is served", "give another --port or --address"});
    };
    if (acceptor_.open(endpoint.protocol(), error)) return step("no socket");
    acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (acceptor_.bind(endpoint, error)) return step("the port cannot be had");
    if (acceptor_.listen(asio::socket_base::max_listen_connections, error))
      return step("the port cannot be listened on");
    port_ = acceptor_.local_endpoint(error).port();
    acceptor_.non_blocking(true, error);
    accept();
    for (int i = 0; i < std::max(1, options_.threads); ++i) threads_.emplace_back([this] { context_.run(); });
    return {};
  }

  uint16_t port() const override { return port_; }
  size_t num_connections() const override {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }
  uint64_t num_accepted() const override { return accepted_; }
  const HttpOptions& options() const { return options_; }
  bool ending() const { return ending_; }
  const Handler& handler() const { return handler_; }

  void end(std::chrono::milliseconds most) override {
    const auto last = std::chrono::steady_clock::now() + most;
    ending_ = true;
    std::this_thread::sleep_for(std::min(options_.drain, most));
    refuse_handshakes();
    std::this_thread::sleep_for(kHandshake);
    asio::post(acceptor_.get_executor(), [this] {
      for (;;) {  // those whose handshake has ended, and whom closing would cut off
        error_code error;
        tcp::socket socket = acceptor_.accept(asio::make_strand(context_), error);
        if (error) break;
        add(std::move(socket));
      }
      error_code error;
      acceptor_.close(error);
    });
    std::unique_lock lock(mutex_);
    // Again and again: an answer may end, and a connection may begin to idle, at any moment.
    while (!connections_.empty() && std::chrono::steady_clock::now() < last) {
      std::vector<std::shared_ptr<Connection>> all;
      for (Connection* each : connections_)
        if (auto alive = each->weak_from_this().lock()) all.push_back(std::move(alive));
      lock.unlock();
      for (const auto& each : all) each->close_if_idle();
      all.clear();
      lock.lock();
      gone_.wait_for(lock, std::chrono::milliseconds(20), [&] { return connections_.empty(); });
    }
  }

  void remove(Connection* connection) {
    const std::lock_guard lock(mutex_);
    connections_.erase(connection);
    if (connections_.empty()) gone_.notify_all();
  }

 private:
  // From now on the kernel begins no handshake; those that have begun may end. Between the last connection that is
  // accepted and the closing of the socket another one would come and be reset, with a request under way. Who asks
  // meanwhile asks again, and is refused.
  void refuse_handshakes() {
    // Of a TCP header: drop what has the flag SYN and not ACK.
    sock_filter drop_syn[] = {BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x12),
                              BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x02, 0, 1), BPF_STMT(BPF_RET | BPF_K, 0),
                              BPF_STMT(BPF_RET | BPF_K, 0xffffffff)};
    const sock_fprog program{std::size(drop_syn), drop_syn};
    (void)::setsockopt(acceptor_.native_handle(), SOL_SOCKET, SO_ATTACH_FILTER, &program,
                       sizeof(program));  // or a moment's risk remains
  }

  void accept() {
    acceptor_.async_accept(asio::make_strand(context_), [this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (!error) add(std::move(socket));
      if (error == boost::system::errc::too_many_files_open ||
          error == boost::system::errc::too_many_files_open_in_system) {
        rest_.expires_after(kAcceptRest);
        rest_.async_wait([this](error_code) {
          if (acceptor_.is_open()) accept();
        });
        return;
      }
      accept();
    });
  }

  void add(tcp::socket socket) {
    ++accepted_;
    error_code error;
    socket.set_option(tcp::no_delay(true), error);
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    bool refuse = false;
    {
      const std::lock_guard lock(mutex_);
      refuse = connections_.size() >= options_.most_connections;
      connections_.insert(connection.get());
    }
    connection->start(refuse);
  }

  const HttpOptions options_;
  const Handler handler_;
  std::atomic<bool> ending_{false};
  std::atomic<uint64_t> accepted_{0};
  uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable gone_;
  std::set<Connection*> connections_;  // under mutex_; before the context, whose end destroys them
  asio::io_context context_;
  tcp::acceptor acceptor_;
  asio::steady_timer rest_;
  std::vector<std::thread> threads_;
};

Connection::~Connection() { server_.remove(this); }

void Connection::start(bool refuse) {
  asio::dispatch(stream_.get_executor(), [self = shared_from_this(), refuse] {
    if (!refuse) return self->wait_for_request();
    self->parser_.emplace();
    self->fail(503, "too many connections");
  });
}

void Connection::wait_for_request() {
  parser_.emplace();
  parser_->body_limit(server_.options().most_body_bytes);
  parser_->header_limit(kMostHeaderBytes);
  if (buffer_.size() > 0) {  // the next request came with the last one
    stream_.expires_after(server_.options().read_timeout);
    return http::async_read_header(stream_, buffer_, *parser_,
                                   [self = shared_from_this()](error_code error, size_t) { self->on_header(error); });
  }
  waiting_ = true;
  stream_.expires_after(server_.options().idle_timeout);
  // Its first bytes alone: from then on it has the time of a request, however slowly the rest comes.
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](error_code error, size_t bytes) {
    self->waiting_ = false;
    if (error) return self->close();
    self->buffer_.commit(bytes);
    self->stream_.expires_after(self->server_.options().read_timeout);
    http::async_read_header(self->stream_, self->buffer_, *self->parser_,
                            [self](error_code failed, size_t) { self->on_header(failed); });
  });
}

void Connection::on_header(error_code error) {
  if (error == http::error::end_of_stream) return close();
  if (error == beast::error::timeout) return fail(408, "the request did not come within its time");
  if (error == http::error::body_limit) return fail(413, "the body is longer than --most-body allows");
  if (error)
    return error.category() == http::make_error_code(http::error::bad_method).category()
               ? fail(400, "no HTTP request: " + error.message())
               : close();
  arrived_ = std::chrono::steady_clock::now();
  if (beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    go_on_ = {http::status::continue_, 11};
    return http::async_write(stream_, go_on_, [self = shared_from_this()](error_code failed, size_t) {
      failed ? self->close() : self->read_body();
    });
  }
  read_body();
}

void Connection::read_body() {
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](error_code error, size_t) { self->on_body(error); });
}

void Connection::on_body(error_code error) {
  if (error == http::error::body_limit) return fail(413, "the body is longer than --most-body allows");
  if (error == beast::error::timeout) return fail(408, "the request did not come within its time");
  if (error)
    return error.category() == http::make_error_code(http::error::bad_method).category()
               ? fail(400, "no HTTP request: " + error.message())
               : close();
  handle();
}

void Connection::handle() {
  auto& message = parser_->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.path = std::string(message.target().substr(0, message.target().find('?')));
  request.body = std::move(message.body());
  request.arrived = arrived_;
  if (const auto length = message.find("Inference-Header-Content-Length"); length != message.end())
    request.json_length = std::string(length->value());
  const bool keep = message.keep_alive();
  stream_.expires_never();  // the answer has a deadline of its own
  auto self = shared_from_this();
  server_.handler()(std::move(request), [self, keep](HttpAnswer answer) {
    asio::post(self->stream_.get_executor(),
               [self, keep, answer = std::move(answer)]() mutable { self->write(std::move(answer), keep); });
  });
}

void Connection::fail(unsigned status, const std::string& what) {
  std::string text;
  for (const char c : what) text += c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  write({status, "{\"error\":\"" + text + "\"}", "application/json", 0, status == 503}, false);
}

void Connection::write(HttpAnswer answer, bool keep) {
  response_ = {};
  response_.version(11);
  response_.result(answer.status);
  response_.set(http::field::content_type, answer.content_type);
  if (answer.json_length > 0) response_.set("Inference-Header-Content-Length", std::to_string(answer.json_length));
  if (answer.retry) response_.set(http::field::retry_after, "1");
  response_.keep_alive(keep && !server_.ending());
  response_.body() = std::move(answer.body);
  response_.prepare_payload();
  if (parser_->is_header_done() && parser_->get().method() == http::verb::head) response_.body().clear();
  stream_.expires_after(server_.options().read_timeout);
  http::async_write(stream_, response_,
                    [self = shared_from_this(), keep = response_.keep_alive()](error_code error, size_t) {
                      if (error || !keep) return self->close();
                      self->response_ = {};
                      self->wait_for_request();
                    });
}

void Connection::close_if_idle() {
  asio::post(stream_.get_executor(), [self = shared_from_this()] {
    if (!self->waiting_) return;
    error_code error;
    if (self->stream_.socket().available(error) == 0 || error) self->stream_.cancel();  // its read ends, and closes it
  });
}

// What was written reaches the client although it may have sent more than was read: that would be answered by a reset.
void Connection::close() {
  error_code error;
  stream_.socket().shutdown(tcp::socket::shutdown_send, error);
  if (error) return;
  auto rest = std::make_shared<std::array<char, 4096>>();
  stream_.expires_after(std::chrono::seconds(1));
  const auto read = [self = shared_from_this(), rest](const auto& again, size_t left) -> void {
    self->stream_.async_read_some(asio::buffer(*rest), [self, rest, again, left](error_code failed, size_t bytes) {
      if (!failed && bytes < left) again(again, left - bytes);
    });
  };
  read(read, size_t{1} << 20);
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::open(const HttpOptions& options, Handler handler) {
  auto server = std::make_unique<Server>(options, std::move(handler));
  KRN_TRY(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace keirin::tools
