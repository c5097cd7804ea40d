package dev.perdura.peers;

import org.apache.zookeeper.Version;
import org.apache.zookeeper.server.quorum.QuorumPeerMain;

/** One server of an ensemble, which is ZooKeeper's own with the file that is named; without one, its version. */
public final class Server {
  public static void main(String[] arguments) {
    if (arguments.length == 0) {
      System.out.println(Version.getVersion());
    } else {
      QuorumPeerMain.main(arguments);
    }
  }
}
