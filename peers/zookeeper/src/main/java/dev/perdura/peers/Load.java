package dev.perdura.peers;

import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException.Code;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;

/**
 * A load client in a closed loop over asynchronous calls: each caller sends its next write from the
 * callback of the last, on its session's own thread.
 *
 * <p>It prints `begin` and `end` around the time that counts, so that the driver reads processor times
 * then, and a line of JSON after them.
 */
public final class Load {
  private static final int SESSION_TIMEOUT_MS = 30_000;

  private final int callers;
  private final int keys;
  private final int valueSize;
  private final byte[] random;
  private final ZooKeeper[] sessions;
  private final AtomicInteger errors = new AtomicInteger();
  private volatile boolean counting;
  private volatile boolean stopped;

  private Load(Map<String, String> flags) throws Exception {
    callers = Integer.parseInt(flags.get("callers"));
    keys = Integer.parseInt(flags.get("keys"));
    valueSize = Integer.parseInt(flags.get("value-size"));
    random = new byte[(1 << 20) + valueSize];
    ThreadLocalRandom.current().nextBytes(random);
    sessions = new ZooKeeper[Integer.parseInt(flags.get("connections"))];
    for (int i = 0; i < sessions.length; i++) {
      sessions[i] = connect(flags.get("servers"));
    }
  }

  /** Flags come in pairs: --servers H:P,... --callers C --connections K --keys N --value-size B
   * --warm-up S --seconds S --fill true|false. */
  public static void main(String[] arguments) throws Exception {
    Map<String, String> flags = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      flags.put(arguments[i].substring(2), arguments[i + 1]);
    }
    Load load = new Load(flags);
    if (Boolean.parseBoolean(flags.get("fill"))) {
      load.fill();
    }
    load.measure(Double.parseDouble(flags.get("warm-up")), Double.parseDouble(flags.get("seconds")));
    for (ZooKeeper session : load.sessions) {
      session.close();
    }
    System.exit(0);
  }

  private static ZooKeeper connect(String servers) throws Exception {
    CountDownLatch connected = new CountDownLatch(1);
    ZooKeeper session = new ZooKeeper(servers, SESSION_TIMEOUT_MS, event -> {
      if (event.getState() == KeeperState.SyncConnected) {
        connected.countDown();
      }
    });
    if (!connected.await(SESSION_TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
      throw new IllegalStateException("no server of " + servers + " accepted a session");
    }
    return session;
  }

  /** A path of 16 bytes. */
  private static String path(int key) {
    String digits = Integer.toString(key);
    return "/k" + "0".repeat(14 - digits.length()) + digits;
  }

  /** Random bytes, which do not compress. */
  private byte[] value() {
    int from = ThreadLocalRandom.current().nextInt(random.length - valueSize);
    return Arrays.copyOfRange(random, from, from + valueSize);
  }

  /** Makes all nodes, those that are there already too. */
  private void fill() throws Exception {
    Semaphore free = new Semaphore(callers);
    for (int key = 0; key < keys; key++) {
      free.acquire();
      sessions[key % sessions.length].create(path(key), value(), Ids.OPEN_ACL_UNSAFE,
          CreateMode.PERSISTENT, (code, path, context, name) -> {
            if (code != Code.OK.intValue() && code != Code.NODEEXISTS.intValue()) {
              errors.incrementAndGet();
            }
            free.release();
          }, null);
    }
    free.acquire(callers);
    if (errors.get() > 0) {
      throw new IllegalStateException(errors.get() + " nodes could not be made");
    }
  }

  private void measure(double warmUp, double seconds) throws Exception {
    String[] paths = new String[keys];
    Arrays.setAll(paths, Load::path);
    CountDownLatch running = new CountDownLatch(callers);
    Caller[] all = new Caller[callers];
    for (int i = 0; i < callers; i++) {
      all[i] = new Caller(sessions[i % sessions.length], paths, running);
      all[i].send();
    }
    Thread.sleep((long) (warmUp * 1000));
    say("begin");
    long began = System.nanoTime();
    counting = true;
    Thread.sleep((long) (seconds * 1000));
    counting = false;
    double measured = (System.nanoTime() - began) / 1e9;
    say("end");
    stopped = true;
    if (!running.await(SESSION_TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
      throw new IllegalStateException("writes are still in flight 30 s after the end");
    }

    long[] latencies = Arrays.stream(all).flatMapToLong(Caller::latencies).sorted().toArray();
    say(String.format(Locale.ROOT,
        "{\"writes\": %d, \"errors\": %d, \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}",
        latencies.length, errors.get(), measured, quantile(latencies, 0.5), quantile(latencies, 0.99)));
  }

  private static double quantile(long[] sorted, double q) {
    return sorted.length == 0 ? 0 : sorted[(int) (q * (sorted.length - 1))] / 1000.0;
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  /** One write in flight. After its first, all happens on the session's thread. */
  private final class Caller {
    private final ZooKeeper session;
    private final String[] paths;
    private final CountDownLatch running;
    private long[] latencies = new long[1024];
    private int count;
    private long sent;

    Caller(ZooKeeper session, String[] paths, CountDownLatch running) {
      this.session = session;
      this.paths = paths;
      this.running = running;
    }

    void send() {
      sent = System.nanoTime();
      String path = paths[ThreadLocalRandom.current().nextInt(keys)];
      session.setData(path, value(), -1, (code, at, context, stat) -> acknowledged(code), null);
    }

    private void acknowledged(int code) {
      long latency = System.nanoTime() - sent;
      if (counting && code == Code.OK.intValue()) {
        if (count == latencies.length) {
          latencies = Arrays.copyOf(latencies, 2 * count);
        }
        latencies[count++] = latency;
      } else if (counting) {
        errors.incrementAndGet();
      }
      if (stopped) {
        running.countDown();
      } else {
        send();
      }
    }

    java.util.stream.LongStream latencies() {
      return Arrays.stream(latencies, 0, count);
    }
  }
}
